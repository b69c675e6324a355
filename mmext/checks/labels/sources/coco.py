"""Samples of an annotation file in COCO's format, also of a panoptic one.

A large file has millions of boxes, of which few are wrong. All are looked at
as columns; only those that a rule may have something to say about become
objects for the rules to check.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import msgspec
import numpy as np
from mmengine.fileio import get

from ....datasets import box_limits
from ..expectations import Expectations, SplitSource, why_left_out
from ..facts import BoxFacts, Orphan, Sample
from ..readers.coco import (
    NO_SEGMENTATION,
    CocoFile,
    mask_of,
    read_coco,
    read_panoptic,
)
from .folders import IMAGE_SUFFIXES, files_below

# Boxes to the right of each that are compared with it, for the time it takes.
_CLOSE = 32


def image_rows(file: CocoFile) -> np.ndarray:
    """Row of the image of each annotation; -1 if there is none."""
    return rows_of(file.images.id, file.annotations.image_id)


def rows_of(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Row of each of the wanted ids, of several the first; -1 if none."""
    if not len(ids):
        return np.full(len(wanted), -1)
    order = np.argsort(ids, kind='stable')
    location = np.searchsorted(ids[order], wanted).clip(max=len(ids) - 1)
    rows = order[location]
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
    rows = rows_of(ids, file.annotations.category_id)
    return np.where(rows >= 0, len(used) - 1 - rows, -1)


def _near(file: CocoFile) -> np.ndarray:
    """Annotations whose box is nearly another one's of class and image.

    Or the same as another one's of any class, or one of many that begin at
    the same place.
    """
    notes = file.annotations
    sides = np.stack(box_limits.sides_of_coco(notes.bbox), axis=1)
    near = np.zeros(len(sides), np.bool_)
    pairs = box_limits.close_pairs(notes.image_id, sides[:, 0])
    for one, other in itertools.islice(pairs, _CLOSE):
        same = (sides[one] == sides[other]).all(1)
        same |= (
            notes.category_id[one] == notes.category_id[other]
        ) & box_limits.is_near(sides[one].T, sides[other].T)
        near[one[same]] = near[other[same]] = True
    # All boxes with so many others beside them.
    for one, other in itertools.islice(pairs, 1):
        near[one] = near[other] = True
    return near


def _sizes(file: CocoFile) -> Iterator[np.ndarray]:
    """Widths and heights of the images, whole; 0 for what is no size."""
    for side in (file.images.width, file.images.height):
        yield np.nan_to_num(side, posinf=0, neginf=0).astype(np.int64)


def suspicious_rows(file: CocoFile, classes: Sequence[str]) -> np.ndarray:
    """Annotations that a rule may have something to say about, ``(M,)`` bool.

    Each annotation that one of the rules DET001 to DET010 and DET012 objects
    to is among them; others may be. All RLE are decoded for it.
    """
    images = image_rows(file)
    known = images >= 0
    width, height = (
        np.where(known, side[images], 0) if len(side) else np.zeros(len(known))
        for side in _sizes(file)
    )
    sides = box_limits.sides_of_coco(file.annotations.bbox)
    # One after the other, for the memory of what each needs for a moment.
    fine = box_limits.has_area(sides) & ~box_limits.is_tiny(sides)
    # Without a known size each box is outside: the image file may have one.
    fine &= ~box_limits.is_outside(sides, width, height)
    fine &= ~box_limits.is_beyond(sides, width, height)
    fine &= _labels(file, classes) >= 0
    fine &= ~_near(file)
    listed = known & file.annotations.has_bbox
    fine &= ~_contradicted(file, images, listed & fine)
    return listed & ~fine


def _contradicted(
    file: CocoFile, images: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Of some annotations, those whose mask is broken or elsewhere."""
    wrong = np.zeros(len(rows), np.bool_)
    # NaN, where there is no box, is off nothing.
    around = file.annotations.polygon_box
    others = np.flatnonzero(rows & ~file.annotations.segmentation_fine)
    if len(others):
        around = around.copy()
    for row in others.tolist():
        error, box = _mask(file, row, int(images[row]))
        wrong[row] = bool(error)
        if box:
            around[row] = box
    sides = box_limits.sides_of_coco(file.annotations.bbox)
    return wrong | box_limits.is_off_mask(sides, around.T)


def _mask(
    file: CocoFile, row: int, image: int
) -> tuple[str, tuple[float, ...]]:
    """What is wrong with the mask of an annotation, and the box around it."""
    size = 0.0, 0.0
    if image >= 0:
        size = file.images.height[image], file.images.width[image]
    return mask_of(file.annotations, row, size)


def _box(
    file: CocoFile, row: int, image: int, label: int, names: dict
) -> BoxFacts:
    notes = file.annotations
    left, top, wide, high = notes.bbox[row].tolist()
    error, around = _mask(file, row, image)
    return BoxFacts(
        box=(left, top, left + wide, top + high),
        label=label,
        # Without a label it is a matter of the file, not of the box.
        class_name=names[int(notes.category_id[row])] if label >= 0 else '',
        location=f'annotations[{notes.index[row]}]',
        ignored=bool(notes.iscrowd[row] or notes.ignore[row]),
        mask_box=around,
        polygon_error=error,
    )


def coco_samples(
    file: CocoFile,
    path: str,
    images: str = '',
    classes: Sequence[str] = (),
    *,
    filter_cfg: Mapping[str, int] | None = None,
) -> Iterator[Sample]:
    """Samples of an annotation file, in the order of its images.

    Only suspicious boxes are listed.
    """
    rows = image_rows(file)
    known = rows >= 0
    counts = np.bincount(rows[known], minlength=len(file.images.id))
    listed = suspicious_rows(file, classes)
    labels = _labels(file, classes)
    names = dict(zip(file.categories.id.tolist(), file.categories.name))
    boxes: dict[int, list[BoxFacts]] = {}
    for row in np.flatnonzero(listed).tolist():
        image = int(rows[row])
        box = _box(file, row, image, int(labels[row]), names)
        boxes.setdefault(image, []).append(box)
    width, height = (side.tolist() for side in _sizes(file))
    of_class = np.bincount(rows[known & (labels >= 0)], minlength=len(counts))
    for row, name in enumerate(file.images.file_name):
        yield Sample(
            index=row,
            image=os.path.join(images, name) if images else '',
            name=name,
            annotation=path,
            boxes=tuple(boxes.get(row, ())),
            num_boxes=int(counts[row]),
            width=width[row],
            height=height[row],
            left_out=why_left_out(
                int(of_class[row]),
                min(width[row], height[row]),
                filter_cfg or {},
            ),
        )


def kept_rows(file: CocoFile, classes: Sequence[str]) -> np.ndarray:
    """Annotations that MMDetection's loader keeps, ``(M,)`` bool."""
    notes, images = file.annotations, image_rows(file)
    kept = (images >= 0) & (_labels(file, classes) >= 0)
    kept &= ~notes.ignore & ~(notes.area <= 0)
    if kept.any():
        left, top, wide, high = notes.bbox.T
        width, height = file.images.width[images], file.images.height[images]
        kept &= (wide >= 1) & (np.minimum(left + wide, width) > left.clip(0))
        kept &= (high >= 1) & (np.minimum(top + high, height) > top.clip(0))
    return kept


def coco_class_counts(
    file: CocoFile, classes: Sequence[str]
) -> list[tuple[int, int]]:
    """Objects of each class that the loader keeps, and images that have it.

    Crowds do not count.
    """
    rows = image_rows(file)
    labels = _labels(file, classes)
    kept = kept_rows(file, classes) & (file.annotations.iscrowd == 0)
    objects = np.bincount(labels[kept], minlength=len(classes))
    number = max(len(file.images.id), 1)
    pairs = np.unique(labels[kept] * number + rows[kept])
    images = np.bincount(pairs // number, minlength=len(classes))
    return list(zip(objects.tolist(), images.tolist()))


def coco_task(file: CocoFile) -> str:
    """``'instance'`` if an object has a mask, else ``'detection'``."""
    with_mask = bool(np.any(file.annotations.segmentation_kind > 0))
    return 'instance' if with_mask else 'detection'


def lacks_mask(file: CocoFile, expected: Expectations) -> np.ndarray:
    """Annotations without a mask that a loader keeps, ``(M,)`` bool."""
    lacks = file.annotations.segmentation_kind == NO_SEGMENTATION
    lacks &= kept_rows(file, expected.classes)
    least = expected.filter_cfg.get('min_size', 0)
    if least and lacks.any():
        sides = np.minimum(file.images.width, file.images.height)
        lacks &= sides[image_rows(file)] >= least
    return lacks


def read_bytes(path: str, backend_args: dict | None) -> bytes:
    """All of an annotation file; FileNotFoundError if there is none."""
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
    backend_args: dict | None = None,
) -> SplitSource:
    """All that an annotation file names, whether a loader keeps it or not.

    The file is read once, here. Without ``images``, their folder, they are not
    looked at. What ``expected`` says of classes goes before what the file
    says; the task is that of the file unless it is ``'unlabelled'``.
    """
    content = read_bytes(path, backend_args)
    file = read_coco(content, expected.split, path)
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

    # Few are kept: without boxes that may be wrong, a sample is small.
    @cache
    def listed() -> Sequence[Sample]:
        return tuple(
            coco_samples(
                file,
                path,
                images,
                expected.classes,
                filter_cfg=expected.filter_cfg,
            )
        )

    def orphans() -> Iterator[Orphan]:
        named = set(file.images.file_name)
        # None of a file that could not be read, which is said elsewhere.
        for results in files_below(images, IMAGE_SUFFIXES) if named else ():
            name = results[len(images) :].lstrip(os.sep).replace(os.sep, '/')
            if name not in named:
                yield Orphan(split=expected.split, path=results, kind='image')

    return SplitSource(
        expected,
        lambda: iter(listed()),
        orphans=orphans if find_orphans and images else lambda: iter(()),
        coco=file,
        backend_args=backend_args,
    )


def seg_maps_of_coco(
    boxes: SplitSource, expected: Expectations, folder: str, suffix: str
) -> SplitSource:
    """Label maps, named as the images of a source of :func:`split_of_coco`.

    ``suffix`` is that of the files in ``folder``. Samples have no image.
    """

    def samples() -> Iterator[Sample]:
        file = boxes.coco
        for sample, name in zip(boxes.samples(), file.images.file_name):
            mask = os.path.join(folder, name.rpartition('.')[0] + suffix)
            yield msgspec.structs.replace(
                sample, image='', annotation='', boxes=(), mask=mask
            )

    return SplitSource(expected, samples, backend_args=boxes.backend_args)


def split_of_panoptic(
    path: str,
    images: str,
    maps: str,
    expected: Expectations,
    *,
    names_of_file: bool = False,
    backend_args: dict | None = None,
) -> SplitSource:
    """All that a panoptic annotation file names, as :func:`split_of_coco`.

    Without ``maps``, the folder of the PNG files, these are not looked at.
    They are named as the file says (``names_of_file``), or else as the image,
    which is what MMDetection goes by.
    """
    file = read_panoptic(read_bytes(path, backend_args))
    coco = msgspec.structs.replace(file.coco, split=expected.split, path=path)
    names = tuple(dict.fromkeys(coco.categories.name))
    classes = expected.classes or names
    things = expected.thing_classes or tuple(
        name for name in classes if coco.things.get(name)
    )
    expected = msgspec.structs.replace(
        expected,
        classes=classes,
        num_classes=len(classes),
        thing_classes=things,
        task='panoptic',
    )

    @cache
    def listed() -> Sequence[Sample]:
        samples = []
        for sample, image, name in zip(
            coco_samples(coco, path, images, classes),
            coco.images.id.tolist(),
            coco.images.file_name,
        ):
            own = file.maps.get(image) if names_of_file else None
            own = os.path.join(maps, own or name.replace('.jpg', '.png'))
            samples.append(
                msgspec.structs.replace(
                    sample,
                    mask=own if maps else '',
                    segments=file.segments.get(image, ()),
                )
            )
        return samples

    return SplitSource(
        expected,
        lambda: iter(listed()),
        coco=coco,
        backend_args=backend_args,
    )
