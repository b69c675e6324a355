"""Read image and label map of a sample, to look at them."""

from functools import cached_property

import numpy as np
from PIL import Image

from ._painting import class_colours
from .check import with_boxes
from .expectations import Expectations
from .facts import Sample
from .loaded import loaded_values
from .readers._decode import (
    DECODER_ERRORS,
    open_image,
    pixels_of,
    read_head,
)
from .sources import SplitSource
from .work import ReadOptions, WorkItem, read_content, reader_of

__all__ = ['SampleFiles', 'UnreadableFile', 'coloured', 'low_bytes']

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
_QUARTER_TURNS = (5, 6, 7, 8)


class UnreadableFile(Exception):
    """A file has no picture; the text says why."""


def low_bytes(pixels: np.ndarray) -> np.ndarray:
    """Cast to uint8 as loaders do: values wrap.

    Args:
        pixels: Of integers, any shape.

    Returns:
        The same shape.

    Examples:
        >>> low_bytes(np.array([-1, 5, 256], np.int32)).tolist()
        [255, 5, 0]
    """
    return pixels.astype(np.uint8, copy=False)


class SampleFiles:
    """Image and label map of a sample, read when asked for.

    Args:
        sample: The sample, kept as an attribute.
        source: Its split, kept.
        max_side: Of pictures, kept. Images are reduced to about that.
    """

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
        """Read an image, by the file backend of the split.

        Args:
            path: As the data set names it.

        Returns:
            The image as loaders turn it, ``(H, W, 3)``, reduced; and its
            whole width and height.

        Raises:
            UnreadableFile: If it cannot be shown.
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
        turned = head.orientation in _QUARTER_TURNS
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
        file = reader_of(kind).read(content, self._options)
        classes = self.source.expected.classes
        label_of = {name: label for label, name in enumerate(classes)}
        return with_boxes(self.sample, file, label_of)

    def boxes(self) -> list[tuple[float, ...]]:
        """All boxes of the sample, ``(x1, y1, x2, y2)``.

        Raises:
            UnreadableFile: If there is no annotation to be read.
        """
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

    Args:
        pixels: Stored values, ``(H, W)``; or colours, ``(H, W, channels)``,
            which stay what they are.
        expected: Of the split.

    Returns:
        ``(H, W, 3)``, uint8.
    """
    if pixels.ndim == 3:
        high = pixels.dtype.itemsize > 1
        return (pixels[..., :3] >> 8 * high).astype(np.uint8)
    colours = class_colours()[np.array(loaded_values(expected).value) % 256]
    for stored, kind in enumerate(loaded_values(expected).kind):
        if kind != 'class':
            colours[stored] = _NO_CLASS
    return colours[low_bytes(pixels)]
