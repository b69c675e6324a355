"""Masks of instances: size, values, and agreement with the boxes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ._boxes import same_counts
from .label_problem import LabelProblem, LabelSpec, as_array, image_size

__all__ = ['boxes_around', 'mask_problems']


def _around_bitmap(mask: np.ndarray) -> tuple[float, ...]:
    rows = np.flatnonzero(mask.max(1)) if mask.size else ()
    if not len(rows):
        return (np.nan,) * 4
    columns = np.flatnonzero(mask[rows[0] : rows[-1] + 1].max(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def _around_polygons(polygons: Sequence[np.ndarray]) -> tuple[float, ...]:
    points = [np.asarray(each).reshape(-1, 2) for each in polygons]
    if not sum(map(len, points)):
        return (np.nan,) * 4
    corners = np.concatenate(points)
    return (*corners.min(0), *corners.max(0))


def boxes_around(masks: Any) -> np.ndarray:
    """The smallest box around each mask.

    Args:
        masks: Bitmaps or polygons of mmdet.

    Returns:
        Float64, ``(N, 4)``, x1 y1 x2 y2 in pixels, x2 and y2 being those
        after the last pixel; NaN for an empty mask.

    Examples:
        >>> from types import SimpleNamespace
        >>> masks = np.eye(3, 5, 1, dtype=np.uint8)[None]
        >>> boxes_around(SimpleNamespace(masks=masks)).tolist()
        [[1.0, 0.0, 4.0, 3.0]]
    """
    around = (
        _around_bitmap
        if isinstance(masks.masks, np.ndarray)
        else _around_polygons
    )
    boxes = [around(mask) for mask in masks.masks]
    return np.array(boxes, np.float64).reshape(-1, 4)


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """IoU of boxes, pair by pair."""
    low, high = np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, 2:], b[:, 2:])
    shared = (high - low).clip(0).prod(1)
    areas = [(each[:, 2:] - each[:, :2]).clip(0).prod(1) for each in (a, b)]
    return shared / np.maximum(areas[0] + areas[1] - shared, 1e-9)


def _agreement_problems(
    results: Mapping[str, Any], boxes: np.ndarray, spec: LabelSpec
) -> Iterator[LabelProblem]:
    around = boxes_around(results['gt_masks'])
    # Boxes that are not finite are another problem.
    finite = np.isfinite(boxes).all(1, keepdims=True)
    boxes = np.where(finite, boxes.astype(np.float64), np.nan)
    flags = results.get('gt_ignore_flags')
    # Masks that the loader could not read are flagged, and empty.
    counts = np.ones(len(boxes), bool)
    if flags is not None:
        counts = ~np.asarray(flags).astype(bool)
    empty = np.isnan(around).any(1)
    bad = empty & counts
    if bad.any():
        yield LabelProblem(
            'mask',
            'gt_masks',
            f'{int(bad.sum())} of {len(bad)} masks are empty; first is that '
            f'of box {int(bad.argmax())}',
            'correct or remove the annotation, or drop masks that a crop '
            'has cut off (mmdet.FilterAnnotations with by_mask=True) before '
            'this check',
            int(bad.sum()),
        )
    far = np.abs(around - boxes).max(1, initial=0) > spec.box_tolerance
    low = _overlaps(around, boxes) < spec.mask_box_iou
    bad = far & low & counts
    if bad.any():
        index = int(bad.argmax())
        pair = (boxes[index].tolist(), around[index].tolist())
        first, other = (', '.join(f'{v:g}' for v in each) for each in pair)
        yield LabelProblem(
            'mask',
            'gt_masks',
            f'{int(bad.sum())} of {len(bad)} masks and boxes disagree, their '
            f'overlap must be at least {spec.mask_box_iou:g}; first is box '
            f'{index}, ({first}), whose mask is in ({other})',
            'are masks and boxes in the same order, and changed by the same '
            'transforms? After rotations and crops boxes are loose: lower '
            'mask_box_iou, or compute boxes anew (recompute_bbox=True)',
            int(bad.sum()),
        )


def mask_problems(
    results: Mapping[str, Any], spec: LabelSpec
) -> Iterator[LabelProblem]:
    """Find what is wrong with the masks of the instances of a sample.

    Args:
        results: The sample; masks are mmdet's bitmaps or polygons.
        spec: What labels must be.

    Yields:
        Each problem. Agreement with boxes is checked for ``(N, 4)`` boxes
        that are as many as masks, and not for ignored ones.
    """
    masks = results.get('gt_masks')
    if masks is None:
        return
    size, own = image_size(results), (masks.height, masks.width)
    if size is not None and own != size:
        yield LabelProblem(
            'shape',
            'gt_masks',
            'masks and image must have the same size, got (height, width) '
            f'{own} and {size}',
            'compare height and width in the annotation with those of the '
            'image file, and its EXIF orientation',
            len(masks),
        )
    bitmaps = masks.masks if isinstance(masks.masks, np.ndarray) else None
    if bitmaps is not None and bitmaps.size and bitmaps.max() > 1:
        yield LabelProblem(
            'mask',
            'gt_masks',
            f'bitmaps must hold 0 and 1, got {bitmaps.max()}',
            'write 1 for the object; 255 is for pictures',
            int((bitmaps > 1).any((1, 2)).sum()),
        )
    if results.get('gt_bboxes') is not None and same_counts(results):
        boxes = as_array(results['gt_bboxes'])
        if boxes.ndim == 2 and boxes.shape[1] == 4:
            yield from _agreement_problems(results, boxes, spec)
