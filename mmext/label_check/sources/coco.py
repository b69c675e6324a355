"""Samples of an annotation file in COCO's format.

A large file has millions of boxes, of which few are wrong. All are looked at
as columns; only those that a rule may have something to say about become
objects for the rules to check.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from mmengine.fileio import get

from ...datasets import box_limits
from ..expectations import Expectations
from ..facts import BoxFacts, Orphan, Sample
from ..readers.coco import (
    NO_SEGMENTATION,
    POLYGONS,
    RLE,
    CocoFacts,
    CocoFile,
    read_coco,
)
from .folder import IMAGE_SUFFIXES, files_below
from .split_source import SplitSource

__all__ = [
    'coco_class_counts',
    'coco_samples',
    'coco_task',
    'read_bytes',
    'rle_error',
    'seg_maps_of_coco',
    'split_of_coco',
    'suspicious_rows',
]

# Five bits a character, from this one on; the sixth says that more follow.
_FIRST = 48
_BITS = 5
_MORE = 0x20
_SIGN = 0x10
_LAST = _FIRST + 63


def rle_error(value: dict[str, Any], size: tuple[float, float]) -> str:
    """What is wrong with run lengths; ``size`` is (height, width) or zeros.

    ``value`` has ``size``, height and width, and ``counts``: lengths, or the
    text that pycocotools makes of them.
    """
    own, counts = value.get('size'), value.get('counts')
    if (
        not isinstance(own, list)
        or len(own) != 2
        or not all(map(_is_count, own))
    ):
        return f'size of the RLE must be [height, width], got {own!r:.60}'
    if all(size) and tuple(own) != tuple(size):
        return (
            f'the RLE is of {own[0]} x {own[1]} pixels (height x width), '
            f'the image of {size[0]:g} x {size[1]:g}'
        )
    if isinstance(counts, str):
        lengths = _decoded(counts)
    else:
        lengths = counts if isinstance(counts, list) else None
    if lengths is None or not all(map(_is_count, lengths)):
        return f'counts of the RLE must be lengths, got {counts!r:.60}'
    if sum(lengths) != own[0] * own[1]:
        return (
            f'the counts of the RLE are {sum(lengths)} pixels together, its '
            f'size is {own[0]} x {own[1]}'
        )
    return ''


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0 and value is not True


def _decoded(text: str) -> list[int] | None:
    """Lengths of a compressed text; None if it is none."""
    lengths: list[int] = []
    number = shift = 0
    for code in text.encode('utf-8', 'replace'):
        if not _FIRST <= code <= _LAST:
            return None
        bits = code - _FIRST
        number |= (bits & (_MORE - 1)) << shift
        shift += _BITS
        if bits & _MORE:
            continue
        if bits & _SIGN:
            number -= 1 << shift
        # From the fourth on, the difference to the one before the last.
        if len(lengths) > 2:
            number += lengths[-2]
        lengths.append(number)
        number = shift = 0
    return None if shift else lengths


# The golden ratio, as whole number: spreads bits over all 64.
_MIX = np.uint64(0x9E3779B97F4A7C15)
# Ids whose range is not larger than so many times their number are looked
# up in a table.
_MAX_GAP = 16
# A polygon of three points has six numbers.
_MIN_POLYGON = 6


def _image_rows(file: CocoFile) -> np.ndarray:
    """Row of the image of each annotation; -1 if there is none."""
    return _rows_of(file.images.id, file.annotations.image_id)


def _rows_of(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Row of each of the wanted ids, of several the first; -1 if none."""
    if not len(ids):
        return np.full(len(wanted), -1)
    low, high = int(ids.min()), int(ids.max())
    if high - low < _MAX_GAP * len(ids):
        table = np.full(high - low + 1, -1)
        table[ids[::-1] - low] = np.arange(len(ids))[::-1]
        inside = (wanted >= low) & (wanted <= high)
        return np.where(inside, table[np.where(inside, wanted - low, 0)], -1)
    order = np.argsort(ids, kind='stable')
    place = np.searchsorted(ids[order], wanted).clip(max=len(ids) - 1)
    rows = order[place]
    return np.where(ids[rows] == wanted, rows, -1)


def _labels(file: CocoFile, classes: Sequence[str]) -> np.ndarray:
    """Label of each annotation, -1 for none, as a loader numbers them.

    MMDetection numbers the categories that are classes in the order of the
    file.
    """
    names = file.categories.name
    used = [i for i, name in enumerate(names) if name in classes]
    if not classes:
        used = list(range(len(names)))
    # Of categories with the same id, the last one counts.
    ids = file.categories.id[used][::-1]
    rows = _rows_of(ids, file.annotations.category_id)
    return np.where(rows >= 0, len(used) - 1 - rows, -1)


def _repeated(file: CocoFile) -> np.ndarray:
    """Annotations whose image, category and box another one has, too.

    By a hash of 64 bits; one that only seems to be repeated does no harm.
    """
    annotations = file.annotations
    hashes = np.zeros(len(annotations.id), np.uint64)
    for column in (
        annotations.image_id,
        annotations.category_id,
        *annotations.bbox.T,
    ):
        hashes ^= np.ascontiguousarray(column).view(np.uint64)
        hashes *= _MIX
        hashes ^= hashes >> np.uint64(32)
    ordered = np.sort(hashes)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    return np.isin(hashes, again)


def _broken(file: CocoFile, images: np.ndarray) -> np.ndarray:
    """Annotations whose polygons or RLE may be wrong."""
    annotations = file.annotations
    broken = ~annotations.segmentation_fine
    for row in np.flatnonzero(broken).tolist():
        broken[row] = bool(_segmentation_error(file, row, int(images[row])))
    return broken


def _sizes(file: CocoFile) -> Iterator[np.ndarray]:
    """Widths and heights of the images, whole; 0 for what is no size."""
    for side in (file.images.width, file.images.height):
        yield np.nan_to_num(side, posinf=0, neginf=0).astype(np.int64)


def suspicious_rows(file: CocoFile, classes: Sequence[str]) -> np.ndarray:
    """Annotations that a rule may have something to say about, ``(M,)`` bool.

    Each annotation that one of the rules DET001 to DET010 objects to is among
    them; others may be. DET008 alone lets none in: to decode all polygons
    takes longer than the check.
    """
    annotations = file.annotations
    images = _image_rows(file)
    known = images >= 0
    width, height = (
        np.where(known, side[images], 0) if len(side) else np.zeros(len(known))
        for side in _sizes(file)
    )
    sides = box_limits.sides_of_coco(annotations.bbox)
    fine = box_limits.has_area(sides) & ~box_limits.is_tiny(sides)
    # Without a known size each box is outside: the image file may have one.
    fine &= ~box_limits.is_outside(sides, width, height)
    fine &= ~box_limits.is_beyond(sides, width, height)
    fine &= _labels(file, classes) >= 0
    fine &= ~_repeated(file) & ~_broken(file, images)
    return known & annotations.has_bbox & ~fine


def _segmentation_error(file: CocoFile, row: int, image: int) -> str:
    """What is wrong with polygons or RLE of an annotation."""
    kind = file.annotations.segmentation_kind[row]
    if kind == NO_SEGMENTATION or file.annotations.segmentation_fine[row]:
        return ''
    try:
        value = file.annotations.segmentation(row)
    except (ValueError, RecursionError) as error:
        return f'it cannot be decoded: {error}'
    if kind == POLYGONS:
        return _polygon_error(value)
    if kind == RLE:
        size = 0.0, 0.0
        if image >= 0:
            size = file.images.height[image], file.images.width[image]
        return rle_error(value, size)
    return 'neither polygons nor RLE'


def _polygon_error(segmentation: object) -> str:
    """What is wrong with the polygons of an annotation."""
    for index, polygon in enumerate(segmentation):
        if not isinstance(polygon, list) or not all(
            isinstance(number, int | float) for number in polygon
        ):
            return f'polygon {index} is no list of numbers'
        if len(polygon) < _MIN_POLYGON or len(polygon) % 2:
            return (
                f'polygon {index} has {len(polygon)} numbers; 3 points or '
                'more, 2 numbers each, are needed'
            )
        if not all(map(math.isfinite, polygon)):
            return f'polygon {index} has a number that is not finite'
    return ''


def _polygon_box(file: CocoFile, row: int) -> tuple[float, ...]:
    """Box around the polygons, if they are as they should be."""
    annotations = file.annotations
    if not annotations.segmentation_fine[row]:
        return ()
    polygons = annotations.segmentation(row) or ()
    sides = [
        [value for polygon in polygons for value in polygon[axis::2]]
        for axis in (0, 1)
    ]
    if not all(sides):
        return ()
    return (*map(float, map(min, sides)), *map(float, map(max, sides)))


def _box(
    file: CocoFile, row: int, image: int, label: int, names: dict
) -> BoxFacts:
    annotations = file.annotations
    left, top, wide, high = annotations.bbox[row].tolist()
    category = int(annotations.category_id[row])
    return BoxFacts(
        box=(left, top, left + wide, top + high),
        label=label,
        # Without a label it is a matter of the file, not of the box.
        class_name=names[category] if label >= 0 else '',
        place=f'annotations[{annotations.index[row]}]',
        ignored=bool(annotations.iscrowd[row] or annotations.ignore[row]),
        mask_box=_polygon_box(file, row),
        polygon_error=_segmentation_error(file, row, image),
    )


def coco_samples(
    file: CocoFile,
    path: str,
    images: str = '',
    classes: Sequence[str] = (),
    *,
    every_box: bool = False,
) -> Iterator[Sample]:
    """Samples of an annotation file, in the order of its images.

    Only suspicious boxes are listed, or ``every_box``. Each polygon and RLE is
    looked at; those that are not as most are get decoded. A box around
    polygons is made for listed boxes alone.
    """
    annotations = file.annotations
    rows_of = _image_rows(file)
    listed = rows_of >= 0
    counts = np.bincount(rows_of[listed], minlength=len(file.images.id))
    if every_box:
        listed &= annotations.has_bbox
    else:
        listed &= suspicious_rows(file, classes)
    labels = _labels(file, classes)
    names = dict(zip(file.categories.id.tolist(), file.categories.name))
    boxes: dict[int, list[BoxFacts]] = {}
    for row in np.flatnonzero(listed).tolist():
        image = int(rows_of[row])
        box = _box(file, row, image, int(labels[row]), names)
        boxes.setdefault(image, []).append(box)
    width, height = (side.tolist() for side in _sizes(file))
    for row, name in enumerate(file.images.file_name):
        yield Sample(
            index=row,
            image=os.path.join(images, name) if images else '',
            annotation=path,
            boxes=tuple(boxes.get(row, ())),
            num_boxes=int(counts[row]),
            width=width[row],
            height=height[row],
        )


def coco_class_counts(
    file: CocoFile, classes: Sequence[str]
) -> list[tuple[int, int]]:
    """Objects of each class, and images that have it.

    Annotations of images that are not there, crowds and ignored ones do not
    count.
    """
    rows = _image_rows(file)
    labels = _labels(file, classes)
    annotations = file.annotations
    kept = (rows >= 0) & (labels >= 0)
    kept &= (annotations.iscrowd == 0) & ~annotations.ignore
    objects = np.bincount(labels[kept], minlength=len(classes))
    number = max(len(file.images.id), 1)
    pairs = np.unique(labels[kept] * number + rows[kept])
    images = np.bincount(pairs // number, minlength=len(classes))
    return list(zip(objects.tolist(), images.tolist()))


def coco_task(file: CocoFile) -> str:
    """``'instance'`` if an object has a mask, else ``'detection'``."""
    with_mask = bool(np.any(file.annotations.segmentation_kind > 0))
    return 'instance' if with_mask else 'detection'


def read_bytes(path: str, backend_args: dict | None) -> bytes:
    """All of an annotation file.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    content = get(path, backend_args=backend_args)
    if content is None:
        raise FileNotFoundError(
            f'the file backend {backend_args} has nothing named {path!r}'
        )
    # Some backends give a view.
    return bytes(content)


def split_of_coco(
    path: str,
    images: str,
    expected: Expectations,
    *,
    find_orphans: bool = False,
    name_of: Callable[[str], str] | None = None,
    backend_args: dict | None = None,
) -> SplitSource:
    """All that an annotation file names, whether a loader keeps it or not.

    Args:
        path: Of the annotation file; read once, here.
        images: Folder of its images; empty not to look at them.
        expected: Of the training. Without ``classes``, those of the file;
            without ``num_classes``, their number; the task is that of the
            file unless it is ``'unlabelled'``.
        find_orphans: Look for images that the file does not name.
        name_of: What becomes of names of images; None if nothing.
        backend_args: Of MMEngine's file backend.

    Returns:
        A sample for each image of the file.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    file = read_coco(read_bytes(path, backend_args))
    if name_of is not None:
        names = tuple(map(name_of, file.images.file_name))
        images_of = msgspec.structs.replace(file.images, file_name=names)
        file = msgspec.structs.replace(file, images=images_of)
    if expected.task != 'unlabelled':
        classes = expected.classes or tuple(
            dict.fromkeys(file.categories.name)
        )
        expected = msgspec.structs.replace(
            expected,
            classes=classes,
            num_classes=expected.num_classes or len(classes),
            task=coco_task(file),
        )
    facts = CocoFacts(split=expected.split, path=path, file=file)

    # Few are kept: without boxes that may be wrong, a sample is small.
    @cache
    def listed() -> Sequence[Sample]:
        return tuple(coco_samples(file, path, images, expected.classes))

    return SplitSource(
        expected,
        lambda: iter(listed()),
        orphans=(lambda: _orphans(facts, images))
        if find_orphans and images
        else lambda: iter(()),
        coco=lambda: facts,
        backend_args=backend_args,
    )


def seg_maps_of_coco(
    boxes: SplitSource, expected: Expectations, folder: str, suffix: str
) -> SplitSource:
    """Label maps of the images of an annotation file.

    Args:
        boxes: Of :func:`split_of_coco`.
        expected: Of the label maps.
        folder: Of the label maps, which have the names of the images.
        suffix: Of their names.

    Returns:
        A sample for each image, without the image itself.
    """

    def samples() -> Iterator[Sample]:
        file = boxes.coco().file
        for sample, name in zip(boxes.samples(), file.images.file_name):
            mask = os.path.join(folder, name.rpartition('.')[0] + suffix)
            yield msgspec.structs.replace(
                sample, image='', annotation='', boxes=(), mask=mask
            )

    return SplitSource(expected, samples, backend_args=boxes.backend_args)


def _orphans(facts: CocoFacts, images: str) -> Iterator[Orphan]:
    named = set(facts.file.images.file_name)
    if not named:
        return  # The file could not be read, which is said elsewhere.
    for path in files_below(images, IMAGE_SUFFIXES):
        name = path[len(images) :].lstrip(os.sep).replace(os.sep, '/')
        if name not in named:
            yield Orphan(split=facts.split, path=path, kind='image')
