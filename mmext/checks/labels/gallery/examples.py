"""Find the samples that findings are about, and the boxes in them."""

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
from PIL import Image

from ...findings import Finding
from ..expectations import Expectations
from ..facts import BoxFacts, Sample, is_turned
from ..loaded import loaded_values
from ..readers.decode import DECODER_ERRORS, open_image, pixels_of, read_head
from ..scan import with_boxes, with_lines
from ..sources.split_source import SplitSource
from ..work import READERS, ReadOptions, WorkItem, read_content
from .painting import class_colours


def _keys(finding: Finding) -> set[str]:
    """Records that a finding is about."""
    return {place.key for place in (finding.location, *finding.related)} - {''}


def _words(finding: Finding) -> set[str]:
    """What a finding in a file of many images may call a sample by."""
    image = finding.location.image
    words = {image} if image else _keys(finding)
    return words or {finding.value} - {''}


def wrong_boxes(finding: Finding, sample: Sample) -> list[BoxFacts]:
    """The boxes of a sample that a finding is about, if it is about any.

    Its place names a box; otherwise its value a class or a label.
    """
    keys = _keys(finding)
    if keys or finding.location.image:
        named = [box for box in sample.boxes if box.place in keys]
        return named or [
            box
            for box in sample.boxes
            if finding.value
            == '(' + ', '.join(f'{side:g}' for side in box.box) + ')'
        ]
    return [
        box
        for box in sample.boxes
        if (box.label < 0 and box.class_name == finding.value)
        or str(box.label) == finding.value
    ]


class ExampleIndex:
    """Findings, looked up by sample.

    Note:
        A look-up takes as long as the sample has boxes, whatever the number
        of findings.
    """

    def __init__(self, findings: Iterable[tuple[int, Finding]]) -> None:
        self._left = dict(findings)
        self._by_file: dict[str, list[int]] = {}
        self._by_word: dict[tuple[str, str], list[int]] = {}
        for number, finding in self._left.items():
            self._by_file.setdefault(finding.file, []).append(number)
            for word in _words(finding):
                key = finding.file, word
                self._by_word.setdefault(key, []).append(number)

    def __len__(self) -> int:
        return len(self._left)

    def take(self, sample: Sample) -> dict[int, Finding]:
        """Findings about a sample; they are not found again."""
        own = [sample.image, sample.mask]
        if sample.annotation_kind:
            own.append(sample.annotation)
        numbers = {
            number
            for file in filter(None, own)
            for number in self._by_file.get(file, ())
        }
        if sample.annotation and not sample.annotation_kind:
            numbers.update(self._in_annotation(sample))
        return {
            number: self._left.pop(number)
            for number in sorted(numbers)
            if number in self._left
        }

    def _in_annotation(self, sample: Sample) -> Iterator[int]:
        """Of the file that may hold the boxes of all samples."""
        words = {sample.image}
        for box in sample.boxes:
            words.update((box.place, str(box.label)))
            if box.label < 0:
                words.add(box.class_name)
        for word in words - {''}:
            yield from self._by_word.get((sample.annotation, word), ())


# Above this, Pillow warns; they take hundreds of megabytes to decode.
_MAX_PIXELS = 89_478_485
_NO_CLASS = (40, 40, 46)
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableFile(Exception):
    """A file has no picture; the text says why."""


def low_bytes(pixels: np.ndarray) -> np.ndarray:
    """Cast to uint8 as loaders do: values wrap."""
    return pixels.astype(np.uint8, copy=False)


class SampleFiles:
    """Image and label map of a sample, read when asked for."""

    def __init__(
        self, sample: Sample, source: SplitSource, max_side: int
    ) -> None:
        self.sample, self.source = sample, source
        self.max_side = max_side
        self._options = ReadOptions(backend_args=source.backend_args)

    def _read(self, path: str) -> bytes:
        item = WorkItem(path=path, kind='image', options=self._options)
        content, error = read_content(item)
        if content is None:
            raise UnreadableFile(error)
        return content

    @cached_property
    def image(self) -> tuple[np.ndarray, tuple[int, int]]:
        """Image of the sample, see :meth:`read_image`."""
        return self.read_image(self.sample.image)

    def read_image(self, path: str) -> tuple[np.ndarray, tuple[int, int]]:
        """Image ``(H, W, 3)`` as loaders turn it, reduced; and its whole size.

        Size is width and height. Raises UnreadableFile.
        """
        content = self._read(path)
        head = read_head(content, _MAX_PIXELS)
        if head.error:
            raise UnreadableFile(head.error)
        try:
            pixels = _visible(content, self.max_side, head.orientation)
        except DECODER_ERRORS as error:
            raise UnreadableFile(f'{type(error).__name__}: {error}') from error
        size = head.width, head.height
        turned = is_turned(head)
        return pixels, size[::-1] if turned else size

    @cached_property
    def mask(self) -> tuple[np.ndarray, str]:
        """Label map as it is stored, and its mode."""
        content = self._read(self.sample.mask)
        head = read_head(content, _MAX_PIXELS)
        if head.error:
            raise UnreadableFile(head.error)
        pixels, error = pixels_of(content, head)
        if error:
            raise UnreadableFile(error)
        if pixels.ndim == 3 and pixels.shape[-1] < 3:
            pixels = pixels[..., 0]
        if pixels.dtype == np.bool_:
            # True is a byte of 255 where Pillow made it.
            pixels = (pixels.view(np.uint8) != 0).view(np.uint8)
        elif pixels.dtype.kind == 'f':
            pixels = np.nan_to_num(pixels).astype(np.int32)
        return pixels, head.mode

    @cached_property
    def annotated(self) -> Sample:
        """The sample with what its own annotation file says."""
        kind = self.sample.annotation_kind
        if not kind:
            return self.sample
        content = self._read(self.sample.annotation)
        file = READERS[kind].read(content, self._options)
        classes = self.source.expected.classes
        if kind == 'yolo':
            size = self.image[1]
            return with_lines(self.sample, file, size, classes)
        label_of = {name: label for label, name in enumerate(classes)}
        return with_boxes(self.sample, file, label_of)

    def boxes(self) -> list[tuple[float, ...]]:
        """All boxes of the sample, ``(x1, y1, x2, y2)``."""
        if self.source.coco is None:
            return [box.box for box in self.annotated.boxes]
        # Samples of a large file list only what may be wrong.
        file = self.source.coco().file
        notes = file.annotations
        own = notes.image_id == file.images.id[self.sample.index]
        found = notes.bbox[own & notes.has_bbox].copy()
        found[:, 2:] += found[:, :2]
        return [tuple(box) for box in found.tolist()]


def _visible(content: bytes, max_side: int, orientation: int) -> np.ndarray:
    """Pixels as seen, reduced to about the size of a picture."""
    side = 2 * max_side, 2 * max_side
    with open_image(content) as image:
        image.draft('RGB', side)
        if image.mode.startswith('I') or image.mode == 'F':
            grey = np.nan_to_num(np.asarray(image, np.float32))
            grey -= grey.min()
            grey *= 255 / (grey.max() or 1)
            image = Image.fromarray(np.rint(grey).astype(np.uint8))
        if image.mode != 'RGB':
            image = image.convert('RGB')
        image.thumbnail(side, Image.Resampling.BOX)
        if orientation in _TURNS:
            image = image.transpose(_TURNS[orientation])
        return np.asarray(image)


def coloured(pixels: np.ndarray, expected: Expectations) -> np.ndarray:
    """Give a label map colours, dark what is no class.

    Stored values ``(H, W)``; colours ``(H, W, channels)`` stay what they are.
    """
    if pixels.ndim == 3:
        high = pixels.dtype.itemsize > 1
        return (pixels[..., :3] >> 8 * high).astype(np.uint8)
    colours = class_colours()[np.array(loaded_values(expected).value) % 256]
    for stored, kind in enumerate(loaded_values(expected).kind):
        if kind != 'class':
            colours[stored] = _NO_CLASS
    return colours[low_bytes(pixels)]
