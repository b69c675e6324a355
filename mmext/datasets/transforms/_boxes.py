"""Boxes, their labels, and that there are as many of each."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .label_problem import LabelProblem, LabelSpec, as_array, image_size

__all__ = ['box_problems', 'same_counts']

_PER_BOX = ('gt_bboxes', 'gt_bboxes_labels', 'gt_ignore_flags', 'gt_masks')
_MAX_LABELS = 12


def _counts(results: Mapping[str, Any]) -> dict[str, int]:
    return {
        key: len(results[key])
        for key in _PER_BOX
        if results.get(key) is not None
    }


def same_counts(results: Mapping[str, Any]) -> bool:
    """Tell whether a sample has as many labels, flags and masks as boxes.

    Args:
        results: The sample; what it lacks does not count.

    Examples:
        >>> same_counts({'gt_bboxes': [1, 2], 'gt_bboxes_labels': [0]})
        False
    """
    return len(set(_counts(results).values())) <= 1


def _first_box(boxes: np.ndarray, bad: np.ndarray) -> str:
    index = int(bad.argmax())
    numbers = ', '.join(f'{value:g}' for value in boxes[index].tolist())
    return f'first is box {index}, ({numbers})'


def _box_problem(
    boxes: np.ndarray, bad: np.ndarray, what: str, remedy: str
) -> Iterator[LabelProblem]:
    count = int(bad.sum())
    if count:
        yield LabelProblem(
            'box',
            'gt_bboxes',
            f'{count} of {len(boxes)} boxes {what}; {_first_box(boxes, bad)}',
            remedy,
            count,
        )


def _corner_problems(
    boxes: np.ndarray, size: tuple[int, int] | None, spec: LabelSpec
) -> Iterator[LabelProblem]:
    """Of finite boxes ``(N, 4)``, x1 y1 x2 y2 in pixels."""
    # Comparisons with NaN are False.
    known = np.where(np.isfinite(boxes).all(1, keepdims=True), boxes, np.nan)
    yield from _box_problem(
        boxes,
        (known[:, 2:] - known[:, :2] <= spec.min_size).any(1),
        f'are degenerate, width and height must be over {spec.min_size:g}',
        'boxes are (x1, y1, x2, y2) with x1 < x2 and y1 < y2; correct or '
        'remove the annotation, or drop boxes that a crop has cut off '
        '(mmdet.FilterAnnotations) before this check',
    )
    if size is None:
        return
    height, width = size
    limit = np.array([width, height, width, height], np.float64)
    outside = (known < -spec.box_tolerance) | (
        known > limit + spec.box_tolerance
    )
    yield from _box_problem(
        boxes,
        outside.any(1),
        f'reach out of the image by more than {spec.box_tolerance:g} '
        f'pixel(s), its (height, width) is {size}',
        'are the boxes of this image, and in pixels of it? Clip them, or '
        'let the transforms before this one clip (clip_border, '
        'bbox_clip_border), or raise box_tolerance',
    )


def _label_problems(
    results: Mapping[str, Any], spec: LabelSpec
) -> Iterator[LabelProblem]:
    labels = as_array(results['gt_bboxes_labels'])
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in 'iu'):
        yield LabelProblem(
            'dtype',
            'gt_bboxes_labels',
            'labels of boxes must be integers of shape (N,), got dtype '
            f'{labels.dtype} of shape {labels.shape}',
            'let the data set give each instance one int as bbox_label',
        )
        return
    bad = (labels < 0) | (labels >= spec.num_classes)
    if not bad.any():
        return
    index = int(bad.argmax())
    values, counts = np.unique(labels[bad], return_counts=True)
    pairs = list(zip(values.tolist(), counts.tolist()))[:_MAX_LABELS]
    yield LabelProblem(
        'range',
        'gt_bboxes_labels',
        f'{int(bad.sum())} of {len(labels)} labels are out of range, they '
        f'must be in [0, {spec.num_classes - 1}] (num_classes='
        f'{spec.num_classes}); values: '
        f'{", ".join(f"{v} ({n})" for v, n in pairs)}; first {labels[index]} '
        f'of box {index}',
        "compare metainfo.classes of the data set with the annotation's "
        'categories and with num_classes of the heads; labels count from 0',
        int(bad.sum()),
    )


def box_problems(
    results: Mapping[str, Any], spec: LabelSpec
) -> Iterator[LabelProblem]:
    """Find what is wrong with the boxes of a sample and with their labels.

    Args:
        results: The sample. Boxes are those of mmdet or an array ``(N, 4)``,
            x1 y1 x2 y2 in pixels. Of mmdet's boxes with other parameters,
            such as rotated ones, only finiteness is checked.
        spec: What labels must be.

    Yields:
        Each problem.
    """
    if not same_counts(results):
        counts = _counts(results)
        yield LabelProblem(
            'count',
            next(iter(counts)),
            'there must be as many boxes as labels, flags and masks, got '
            + ', '.join(f'{n} {key}' for key, n in counts.items()),
            'a transform before this one, or the data set, drops some of '
            'them without the others; filter by one index',
        )
    if results.get('gt_bboxes') is not None:
        boxes = as_array(results['gt_bboxes'])
        is_plain = boxes is results['gt_bboxes']
        if boxes.ndim != 2 or (is_plain and boxes.shape[1] != 4):
            yield LabelProblem(
                'shape',
                'gt_bboxes',
                f'boxes must have shape (N, 4), got {boxes.shape}',
                'give (x1, y1, x2, y2) for each; none is shape (0, 4)',
            )
        else:
            yield from _box_problem(
                boxes,
                ~np.isfinite(boxes).all(1),
                'are not finite',
                'look for NaN or infinity in the annotation, or for a '
                'division by a size of 0 in a transform',
            )
            if boxes.shape[1] == 4:
                yield from _corner_problems(boxes, image_size(results), spec)
    if results.get('gt_bboxes_labels') is not None:
        yield from _label_problems(results, spec)
