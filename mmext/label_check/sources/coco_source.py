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
from ..readers.coco_reader import POLYGONS, CocoFile

__all__ = ['coco_class_counts', 'coco_samples', 'suspicious_rows']

_MIN_SIZE = 1.0
_SLACK = 1.0
# A polygon of three points has six numbers.
_MIN_POLYGON = 6


def _image_rows(file: CocoFile) -> np.ndarray:
    """Row of the image of each annotation; -1 if there is none."""
    ids = file.images.id
    if not len(ids):
        return np.full(len(file.annotations.id), -1)
    order = np.argsort(ids, kind='stable')
    wanted = file.annotations.image_id
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
    label = {int(file.categories.id[row]): i for i, row in enumerate(used)}
    ids, inverse = np.unique(file.annotations.category_id, return_inverse=True)
    numbers = np.array([label.get(int(each), -1) for each in ids], np.int64)
    return numbers[inverse] if len(ids) else numbers


def _repeated(file: CocoFile) -> np.ndarray:
    """Annotations whose image, category and box another one has, too."""
    notes = file.annotations
    key = np.column_stack(
        (notes.image_id, notes.category_id, notes.bbox.view(np.int64))
    )
    _, inverse, count = np.unique(
        key, axis=0, return_inverse=True, return_counts=True
    )
    return count[inverse.reshape(-1)] > 1


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
    fine &= (notes.segmentation_kind <= 2) & ~_repeated(file)
    return known & notes.has_bbox & ~fine


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


def _box(file: CocoFile, row: int, label: int, names: dict) -> BoxFacts:
    notes = file.annotations
    left, top, wide, high = notes.bbox[row].tolist()
    error = ''
    if notes.segmentation_kind[row] == POLYGONS:
        error = _polygon_error(notes.segmentation(row))
    elif notes.segmentation_kind[row] > POLYGONS + 1:
        error = 'neither polygons nor RLE'
    category = int(notes.category_id[row])
    return BoxFacts(
        box=(left, top, left + wide, top + high),
        label=label,
        class_name=names.get(category, f'category {category}'),
        place=f'annotations[{notes.index[row]}]',
        ignored=bool(notes.iscrowd[row] or notes.ignore[row]),
        polygon_error=error,
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
        Polygons are looked at only of listed boxes.
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
        box = _box(file, row, int(labels[row]), names)
        boxes.setdefault(int(rows_of[row]), []).append(box)
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
        there do not count.
    """
    rows = _image_rows(file)
    labels = _labels(file, classes)
    kept = (rows >= 0) & (labels >= 0)
    objects = np.bincount(labels[kept], minlength=len(classes))
    pairs = np.unique(np.column_stack((labels[kept], rows[kept])), axis=0)
    images = np.bincount(pairs[:, 0], minlength=len(classes))
    return list(zip(objects.tolist(), images.tolist()))
