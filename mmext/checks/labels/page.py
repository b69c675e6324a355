"""A report as one page for a browser, with pictures of what is wrong.

The page needs nothing but itself.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import PurePath

import cv2
import msgspec
import numpy as np
from PIL import Image, ImageOps

from ...utils.draw import (
    class_palette,
    color_labels,
    draw_boxes,
    draw_masks,
    picture_scale,
    scaled,
    side_by_side,
)
from ..findings import Finding, page
from .check import annotated
from .expectations import (
    Expectations,
    SplitSource,
    holds_indices,
    loaded_values,
)
from .facts import BoxFacts, MaskFacts, Sample, is_turned
from .readers.decode import DECODER_ERRORS, open_image, pixels_of, read_head
from .report import FindingGroup, Report, class_table, many, percent
from .rules.registry import RULES
from .store import WorkItem, read_content, read_facts

# What the finding is about; what else is wrong, or to be compared; the rest.
WRONG = (255, 0, 144)
OTHER = (255, 196, 0)
FINE = (0, 214, 255)
# What no image has, and what is no class.
OUTSIDE = (58, 60, 68)
NO_CLASS = (40, 40, 46)

_MAX_PICTURES = 200
# For one file and rule: each shows the other values of the file, too.
_MAX_OF_FILE = 5
_MAX_SIDE = 480
# Above this, Pillow warns; they take hundreds of megabytes to decode.
_MAX_PIXELS = 89_478_485
_BYTE = 256
# Below this share of the picture, what is wrong is made larger.
_FEW = 0.002
_SMALL_BOX = 10
_RING = 12
# How much of what is outside of an image is shown, as a share of its sides.
_MARGIN = 0.25


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with a picture of it."""

    finding: Finding  # What is shown.
    group: int  # Index in the groups of the report.
    width: int = 0  # Of the picture, in pixels; 0 without one.
    height: int = 0  # The same.
    uri: str = ''  # 'data:...' of the picture; empty if a file cannot be read.
    alt: str = ''  # What is to be seen; without a picture, why there is none.


class UnreadableFile(Exception):
    """A file has no picture; the text says why."""


def make_gallery(
    report: Report,
    sources: Sequence[SplitSource],
) -> list[Picture]:
    """Paint what is wrong with the examples of a report, in its order.

    Wrong pixels of label maps are painted over the image; a wrong box is drawn
    thick, the other boxes thin. Files that disagree are put side by side.
    Findings about no sample, such as those about a config, have no picture;
    what cannot be read has an entry without one. Each rule has its share of
    200 pictures, and 5 for each file. Files of one sample are in memory at a
    time.
    """
    chosen = _chosen(report.groups)
    done: dict[int, Picture] = {}
    for source in sources:
        split = source.expected.split
        index = ExampleIndex(
            (number, finding)
            for number, (_, finding) in enumerate(chosen)
            if number not in done and finding.split in ('', split)
        )
        for sample in source.samples() if index.left else ():
            files = SampleFiles(sample, source)
            for number, finding in index.take(sample).items():
                shown = {'finding': finding, 'group': chosen[number][0]}
                try:
                    painted, alt = _paint(finding, files)
                except UnreadableFile as error:
                    done[number] = Picture(**shown, alt=f'no picture: {error}')
                    continue
                done[number] = Picture(
                    **shown,
                    width=painted.shape[1],
                    height=painted.shape[0],
                    uri=page.data_uri(painted),
                    alt=alt,
                )
            if not index.left:
                break
    return [done[number] for number in sorted(done)]


def _chosen(groups: Sequence[FindingGroup]) -> list[tuple[int, Finding]]:
    """Group and finding of some examples: of each rule in turn."""
    turns: Counter[str] = Counter()
    of_file: Counter[tuple[str, str, str]] = Counter()
    rows = []
    depth = max((len(group.examples) for group in groups), default=0)
    for which in range(depth):
        for index, group in enumerate(groups):
            for example in group.examples[which : which + 1]:
                file = group.rule, example.file, example.location.image
                of_file[file] += 1
                if example.file and of_file[file] <= _MAX_OF_FILE:
                    rows.append((turns[group.rule], index, which, example))
                    turns[group.rule] += 1
    rows = sorted(rows, key=lambda row: row[:3])[:_MAX_PICTURES]
    rows.sort(key=lambda row: row[1:3])
    return [(index, finding) for _, index, _, finding in rows]


class ExampleIndex:
    """Findings, looked up by sample: by its files, and by words in them."""

    def __init__(self, findings: Iterable[tuple[int, Finding]]) -> None:
        self.left = dict(findings)
        self._numbers: dict[tuple[str, str], set[int]] = {}
        for number, finding in self.left.items():
            # In a file of many images, one of these words tells the sample.
            image = finding.location.image
            words = ({image} if image else _keys(finding)) or {finding.value}
            for word in {'', *words}:
                at = finding.file, word
                self._numbers.setdefault(at, set()).add(number)

    def take(self, sample: Sample) -> dict[int, Finding]:
        """Findings about a sample; they are not found again."""
        files = {sample.image, sample.mask}
        words: set[str] = set()
        if sample.annotation_kind:
            files.add(sample.annotation)
        elif sample.annotation:
            words.add(sample.image or sample.name)
            for box in sample.boxes:
                words.update((box.location, str(box.label)))
                if box.label < 0:
                    words.add(box.class_name)
        locations = {(file, '') for file in files - {''}}
        locations |= {(sample.annotation, word) for word in words - {''}}
        result = set().union(*(self._numbers.get(at, ()) for at in locations))
        return {
            number: self.left.pop(number)
            for number in sorted(result & self.left.keys())
        }


def _keys(finding: Finding) -> set[str]:
    """Records that a finding is about."""
    return {
        location.key for location in (finding.location, *finding.related)
    } - {''}


def wrong_boxes(finding: Finding, sample: Sample) -> list[BoxFacts]:
    """The boxes of a sample that a finding is about, if it is about any.

    Its location names a box; otherwise its value a class or a label.
    """
    keys, value = _keys(finding), finding.value
    named = [box for box in sample.boxes if box.location in keys]
    return named or [
        box
        for box in sample.boxes
        if (box.label < 0 and box.class_name == value)
        or value == str(box.label)
        or value == '(' + ', '.join(f'{side:g}' for side in box.box) + ')'
    ]


class SampleFiles:
    """Image and label map of a sample, read when asked for."""

    def __init__(self, sample: Sample, source: SplitSource) -> None:
        self.sample, self.source = sample, source

    def _read(self, path: str) -> bytes:
        args = self.source.backend_args
        item = WorkItem(path=path, kind='image', backend_args=args)
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
            pixels = _visible(content, head.orientation)
        except DECODER_ERRORS as error:
            raise UnreadableFile(f'{type(error).__name__}: {error}') from error
        size = head.width, head.height
        return pixels, size[::-1] if is_turned(head) else size

    def image_if_readable(self) -> tuple[np.ndarray, tuple[int, int]] | None:
        """Image of the sample; None if there is none."""
        try:
            return self.image if self.sample.image else None
        except UnreadableFile:
            return None

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
        expected = self.source.expected
        file = read_facts(content, kind, expected.kpt_shape)
        size = self.image[1] if kind == 'yolo' else None
        return annotated(self.sample, file, size, expected.classes)

    def boxes(self) -> list[tuple[float, ...]]:
        """All boxes of the sample, ``(x1, y1, x2, y2)``."""
        if self.source.coco is None:
            return [box.box for box in self.annotated.boxes]
        # Samples of a large file list only what may be wrong.
        file = self.source.coco
        notes = file.annotations
        own = notes.image_id == file.images.id[self.sample.index]
        boxes = notes.bbox[own & notes.has_bbox].copy()
        boxes[:, 2:] += boxes[:, :2]
        return [tuple(box) for box in boxes.tolist()]


def _visible(content: bytes, orientation: int) -> np.ndarray:
    """Pixels as seen, reduced to about the size of a picture."""
    side = 2 * _MAX_SIDE, 2 * _MAX_SIDE
    with open_image(content) as image:
        image.draft('RGB', side)
        if orientation > 1:
            image = ImageOps.exif_transpose(image)
        if image.mode.startswith('I') or image.mode == 'F':
            grey = np.nan_to_num(np.asarray(image, np.float32))
            grey -= grey.min()
            grey *= 255 / (grey.max() or 1)
            image = Image.fromarray(np.rint(grey).astype(np.uint8))
        if image.mode != 'RGB':
            image = image.convert('RGB')
        image.thumbnail(side, Image.Resampling.BOX)
        return np.asarray(image)


# A picture, and what is to be seen in it.
_Painted = tuple[np.ndarray, str]


def _paint(finding: Finding, files: SampleFiles) -> _Painted:
    """Choose how to show it, from what the rule counts."""
    sample, expected = files.sample, files.source.expected
    rule = RULES[finding.rule]
    about_mask = bool(sample.mask) and finding.file == sample.mask
    if about_mask and rule.unit == 'pixel':
        mask = MaskFacts(mode=files.mask[1])
        # Not of values such as 'nan'.
        is_number = finding.value.removeprefix('-').isdecimal()
        if is_number and holds_indices(mask, expected):
            return _wrong_pixels(finding, files)
    if about_mask or (sample.mask and rule.picture == 'pair'):
        return _image_and_mask(files)
    if not sample.image:
        raise UnreadableFile('the sample has no image')
    if rule.picture == 'alike':
        return _alike(finding, files)
    return _objects(finding, files, rule.picture == 'boxes')


def _fitted(pixels: np.ndarray) -> tuple[int, int]:
    """Width and height that a picture of these pixels gets."""
    height, width = pixels.shape[:2]
    scale = picture_scale(height, width, side=_MAX_SIDE, shrink=True)
    return max(1, int(width * scale)), max(1, int(height * scale))


def colored(pixels: np.ndarray, expected: Expectations) -> np.ndarray:
    """Give a label map colours, dark what is no class.

    Stored values ``(H, W)``; colours ``(H, W, channels)`` stay what they are.
    """
    if pixels.ndim == 3:
        high = pixels.dtype.itemsize > 1
        return (pixels[..., :3] >> 8 * high).astype(np.uint8)
    table = loaded_values(expected)
    # A value that no class has: it is above all of them.
    labels = [
        value if kind == 'class' else 2 * _BYTE
        for value, kind in zip(table.value, table.kind)
    ]
    palette = class_palette(_BYTE)
    # Loaders cast to bytes: values wrap.
    return color_labels(
        np.array(labels)[pixels.astype(np.uint8)], palette, NO_CLASS
    )


def _resized_mask(pixels: np.ndarray) -> np.ndarray:
    """A label map in the size of a picture, of values that it has."""
    width, height = _fitted(pixels)
    rows = np.arange(height) * pixels.shape[0] // height
    return pixels[rows][:, np.arange(width) * pixels.shape[1] // width]


def _ring(canvas: np.ndarray, x: float, y: float) -> None:
    """Draw a ring that is seen on any ground, and leaves its centre free."""
    for color, thick in (((0, 0, 0), 5), ((255, 255, 255), 2)):
        cv2.circle(canvas, (round(x), round(y)), _RING, color, thick)


def _wrong_pixels(finding: Finding, files: SampleFiles) -> _Painted:
    """The image or the label map, dimmed, its wrong pixels marked."""
    value, (pixels, _) = int(finding.value), files.mask
    expected = files.source.expected
    fine = np.isin(np.arange(_BYTE), list(loaded_values(expected).fine))
    wrong = pixels == value
    other = ~fine[pixels.astype(np.uint8)]
    if pixels.dtype.itemsize > 1:
        other |= (pixels < 0) | (pixels >= _BYTE)
    small = _resized_mask(pixels)
    height, width = small.shape
    read = files.image_if_readable()
    if read is not None and read[1] == pixels.shape[::-1]:
        ground, what = scaled(read[0], width, height), 'image'
    else:
        ground, what = colored(small, expected), 'label map'
    # Darker and with less colour, so that marks stand out.
    grey = ground.mean(-1, keepdims=True)
    canvas = np.rint(0.31 * (ground + grey) + 26).astype(np.uint8)
    few = wrong.mean() < _FEW
    masks = [wrong, other & ~wrong]
    draw_masks(canvas, masks, [WRONG, OTHER], alpha=0.7)
    if few:
        indices = np.argwhere((canvas == WRONG).all(-1))
        for y, x in indices:
            canvas[max(y - 2, 0) : y + 3, max(x - 2, 0) : x + 3] = WRONG
        if len(indices):
            y, x = indices[0]
            _ring(canvas, x, y)
    return canvas, (
        f'{what} with pixels of value {value} marked, first {finding.position}'
    )


def _image_and_mask(files: SampleFiles) -> _Painted:
    """Image and label map in one picture, as far as there are both."""
    pixels, _ = files.mask
    expected, read = files.source.expected, files.image_if_readable()
    labels = colored(_resized_mask(pixels), expected)
    if read is None:
        return labels, 'label map'
    image = scaled(read[0], *_fitted(read[0]))
    picture = side_by_side([image, labels], ['image', 'label map'])
    return picture, 'image, and beside it its label map'


def _alike(finding: Finding, files: SampleFiles) -> _Painted:
    """The image, and the first other that the finding names."""
    names = [finding.file]
    names += [p.file for p in finding.related if p.file != finding.file][:1]
    panels = [files.read_image(names[0])[0]]
    try:
        panels += [files.read_image(name)[0] for name in names[1:]]
    except UnreadableFile:
        names = names[:1]
    panels = [scaled(p, *_fitted(p)) for p in panels]
    if not names[1:]:
        return panels[0], 'image'
    picture = side_by_side(panels, [PurePath(name).name for name in names])
    return picture, f'image, and beside it {names[1]}'


def _objects(
    finding: Finding, files: SampleFiles, about_boxes: bool
) -> _Painted:
    """The image with its boxes, the wrong ones marked if it is about them."""
    image, size = files.image
    sample, boxes = files.annotated, files.boxes()
    wrong = wrong_boxes(finding, sample) if about_boxes else []
    painted = paint_boxes(
        image,
        size,
        [box.box for box in wrong],
        boxes,
        [box.mask_box for box in wrong if len(box.mask_box) == 4],
    )
    alt = f'image with {len(boxes)} boxes' if boxes else 'image'
    if wrong:
        alt = f'image with {len(wrong)} wrong of {len(boxes)} boxes marked'
    return painted, alt


Box = tuple[float, float, float, float]


def paint_boxes(
    image: np.ndarray,
    size: tuple[int, int],
    wrong: Sequence[Box],
    fine: Sequence[Box],
    other: Sequence[Box] = (),
) -> np.ndarray:
    """Draw boxes over an image: ``wrong`` thick, ``fine`` thin.

    Boxes are in the pixels of the whole image, whose width and height are
    ``size``; ``image`` may be reduced. ``other`` is what the wrong boxes are
    to be compared with. A quarter of the image is added on each side if wrong
    boxes reach there. What is too small to be seen gets a ring, what is
    further outside is drawn at the border.
    """
    whole, ends = np.maximum(size, 1), np.tile(np.maximum(size, 1), 2)
    bad = _whole(wrong, size)
    outside = bool(((bad < 0) | (bad > ends)).any())
    margin = whole * (_MARGIN if outside else 0)
    width, height = (whole + 2 * margin).tolist()
    scale = picture_scale(
        math.ceil(height), math.ceil(width), side=_MAX_SIDE, shrink=True
    )
    inner = np.maximum((whole * scale).astype(int), 1)
    left, top = (margin * scale).astype(int).tolist()
    canvas = cv2.copyMakeBorder(
        scaled(image, *inner.tolist()),
        *(top, top, left, left),
        cv2.BORDER_CONSTANT,
        value=OUTSIDE,
    )

    def placed(boxes: np.ndarray) -> np.ndarray:
        pad = np.tile(margin, 2)
        boxes = boxes.clip(-pad, ends + pad) * np.tile(inner / whole, 2)
        limit = np.tile(canvas.shape[1::-1], 2) - 1
        return (boxes + np.tile([left, top], 2)).clip(0, limit)

    for boxes, color, thick in ((fine, FINE, 1), (other, OTHER, 2)):
        boxes = [box for box in boxes if all(map(math.isfinite, box))]
        there = _whole(boxes, size)
        there = there[((there[:, :2] <= whole) & (there[:, 2:] >= 0)).all(1)]
        draw_boxes(canvas, placed(there), [color] * len(there), thick)
    bad = placed(bad)
    draw_boxes(canvas, bad, [WRONG] * len(bad), 3)
    for x1, y1, x2, y2 in bad.tolist():
        if max(x2 - x1, y2 - y1) < _SMALL_BOX:
            _ring(canvas, (x1 + x2) / 2, (y1 + y2) / 2)
    return canvas


def _whole(boxes: Sequence[Box], size: tuple[int, int]) -> np.ndarray:
    """Boxes of finite numbers, ``(n, 4)``, the larger sides last."""
    sides = np.array(boxes, float).reshape(-1, 4)
    sides = np.where(np.isfinite(sides), sides, (0, 0, *size))
    low = np.minimum(sides[:, :2], sides[:, 2:])
    return np.hstack([low, np.maximum(sides[:, :2], sides[:, 2:])])


# With few findings, there is room for all that is known of them.
_OPEN = 8


def report_html(report: Report, pictures: Sequence[Picture] = ()) -> bytes:
    """One page, as UTF-8: findings, classes, pictures, rules.

    It loads nothing, and can be read without JavaScript, which only sorts,
    filters and enlarges.
    """
    counts: Counter[str] = Counter()
    for group in report.groups:
        counts[group.rule] += group.num_findings
    tiles = page.tiles(
        (group.severity, group.num_findings) for group in report.groups
    )
    samples = sum(split.num_samples for split in report.splits)
    splits = many(len(report.splits), 'split')
    return page.render(
        __package__,
        'report.html.jinja',
        page={
            'verdict': page.summary(tiles),
            'worst': page.severity_word(report.worst()),
            'samples': f'{many(samples, "sample")} of {splits}',
            'tiles': tiles,
            'report': report,
            'open': len(report.groups) <= _OPEN,
            'charts': [class_table(s) for s in report.splits if s.classes],
            'percent': percent,
            'pictures': pictures,
            'num_pictures': Counter(picture.group for picture in pictures),
            'picture_rules': {picture.finding.rule for picture in pictures},
            'rules': RULES,
            'counts': counts,
            'word': page.severity_word,
            'many': many,
            'plural': page.plural,
        },
    )
