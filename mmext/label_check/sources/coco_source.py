"""Samples of an annotation file in COCO's format.

A large file has millions of boxes, of which few are wrong. All are looked at
as columns; only those that a rule may have something to say about become
objects for the rules to judge.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import numpy as np

from ..facts import BoxFacts, Sample
from ..readers._rle import rle_error
from ..readers.coco_reader import NO_SEGMENTATION, POLYGONS, RLE, CocoFile

__all__ = ['coco_class_counts', 'coco_samples', 'suspicious_rows']

_MIN_SIZE = 1.0
# The golden ratio, as whole number: spreads bits over all 64.
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SLACK = 1.0
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
    notes = file.annotations
    hashes = np.zeros(len(notes.id), np.uint64)
    for column in (notes.image_id, notes.category_id, *notes.bbox.T):
        hashes ^= np.ascontiguousarray(column).view(np.uint64)
        hashes *= _MIX
        hashes ^= hashes >> np.uint64(32)
    ordered = np.sort(hashes)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    return np.isin(hashes, again)


def _broken(file: CocoFile, images: np.ndarray) -> np.ndarray:
    """Annotations whose polygons or RLE may be wrong."""
    notes = file.annotations
    broken = ~notes.segmentation_fine
    for row in np.flatnonzero(broken).tolist():
        broken[row] = bool(_segmentation_error(file, row, int(images[row])))
    return broken


def suspicious_rows(file: CocoFile, classes: Sequence[str]) -> np.ndarray:
    """Tell the annotations that a rule may have something to say about.

    Args:
        file: What the annotation file says.
        classes: Of the data set; empty for all.

    Returns:
        ``(M,)`` bool. Each annotation that one of the rules DET001 to DET010
        objects to is among them; others may be.
    """
    notes = file.annotations
    images = _image_rows(file)
    known = images >= 0
    width, height = (
        np.where(known, side[images], 0) if len(side) else np.zeros(len(known))
        for side in (file.images.width, file.images.height)
    )
    left, top, wide, high = notes.bbox.T
    fine = (wide >= _MIN_SIZE) & (high >= _MIN_SIZE)  # False for NaN
    fine &= (left >= -_SLACK) & (top >= -_SLACK)
    fine &= (left + wide <= width + _SLACK) & (top + high <= height + _SLACK)
    fine &= (left < width) & (top < height) & (left + wide > 0)
    fine &= (top + high > 0) & (_labels(file, classes) >= 0)
    fine &= ~_repeated(file) & ~_broken(file, images)
    return known & notes.has_bbox & ~fine


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
            isinstance(each, int | float) for each in polygon
        ):
            return f'polygon {index} is no list of numbers'
        if len(polygon) < _MIN_POLYGON or len(polygon) % 2:
            return (
                f'polygon {index} has {len(polygon)} numbers; 3 points or '
                'more, 2 numbers each, are needed'
            )
        if not all(math.isfinite(each) for each in polygon):
            return f'polygon {index} has a number that is not finite'
    return ''


def _polygon_box(file: CocoFile, row: int) -> tuple[float, ...]:
    """Box around the polygons, if they are as they should be."""
    notes = file.annotations
    if not notes.segmentation_fine[row]:
        return ()
    polygons = notes.segmentation(row) or ()
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
    notes = file.annotations
    left, top, wide, high = notes.bbox[row].tolist()
    category = int(notes.category_id[row])
    return BoxFacts(
        box=(left, top, left + wide, top + high),
        label=label,
        # Without a label it is a matter of the file, not of the box.
        class_name=names[category] if label >= 0 else '',
        place=f'annotations[{notes.index[row]}]',
        ignored=bool(notes.iscrowd[row] or notes.ignore[row]),
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

    Args:
        file: What it says.
        path: Of the annotation file.
        images: Folder of the images; empty not to look at them.
        classes: Of the data set; empty for the categories of the file.
        every_box: List all boxes, not only suspicious ones.

    Yields:
        One for each image.

    Note:
        Each polygon and RLE is looked at; those that are not as most are
        get decoded. A box around polygons is made for listed boxes alone.
    """
    notes = file.annotations
    rows_of = _image_rows(file)
    listed = rows_of >= 0
    counts = np.bincount(rows_of[listed], minlength=len(file.images.id))
    if every_box:
        listed &= notes.has_bbox
    else:
        listed &= suspicious_rows(file, classes)
    labels = _labels(file, classes)
    names = dict(zip(file.categories.id.tolist(), file.categories.name))
    boxes: dict[int, list[BoxFacts]] = {}
    for row in np.flatnonzero(listed).tolist():
        image = int(rows_of[row])
        box = _box(file, row, image, int(labels[row]), names)
        boxes.setdefault(image, []).append(box)
    width, height = (
        np.nan_to_num(side, posinf=0, neginf=0).astype(np.int64).tolist()
        for side in (file.images.width, file.images.height)
    )
    root = PurePosixPath(images)
    for row, name in enumerate(file.images.file_name):
        yield Sample(
            index=row,
            image=str(root / name) if images else '',
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

    Args:
        file: What the annotation file says.
        classes: Of the data set.

    Returns:
        For each class the two numbers; annotations of images that are not
        there, and crowds and ignored ones, do not count.
    """
    rows = _image_rows(file)
    labels = _labels(file, classes)
    notes = file.annotations
    kept = (rows >= 0) & (labels >= 0)
    kept &= (notes.iscrowd == 0) & ~notes.ignore
    objects = np.bincount(labels[kept], minlength=len(classes))
    number = max(len(file.images.id), 1)
    pairs = np.unique(labels[kept] * number + rows[kept])
    images = np.bincount(pairs // number, minlength=len(classes))
    return list(zip(objects.tolist(), images.tolist()))
