"""What is wrong with label maps, boxes, their labels and masks of a sample."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...utils.label_spec import allowed_labels, likely_cause, values_text
from .. import box_limits
from .label_problem import (
    LabelProblem,
    SampleSpec,
    as_array,
    image_size,
    is_loaded_late,
)

_KEYS = ('gt_seg_map', 'gt_seg_map_from', 'gt_seg_map_to')


def seg_map_keys(results: Mapping[str, Any]) -> list[str]:
    """Keys of the label maps of a sample; edges and depth hold no classes."""
    return [key for key in _KEYS if results.get(key) is not None]


def out_of_range(
    label_map: np.ndarray, num_classes: int, ignore_index: int | None
) -> np.ndarray:
    """Bool, pixels that are neither in ``[0, num_classes)`` nor ignored."""
    bad = label_map >= num_classes
    if label_map.dtype.kind == 'i':
        bad |= label_map < 0
    if ignore_index is not None:
        bad &= label_map != ignore_index
    return bad


def _range_problem(
    results: Mapping[str, Any], key: str, bad: np.ndarray, spec: SampleSpec
) -> LabelProblem:
    label_map, num_classes = results[key], spec.num_seg_classes
    values, counts = np.unique(label_map[bad], return_counts=True)
    order = np.argsort(-counts, kind='stable')
    pairs = list(zip(values[order].tolist(), counts[order].tolist()))
    y, x = (int(i) for i in np.unravel_index(bad.argmax(), bad.shape))
    count = int(bad.sum())
    # Settings of the data set that change values.
    read_with = ' and '.join(
        f'{key}={results[key]}'
        for key in ('reduce_zero_label', 'label_map')
        if results.get(key)
    )
    allowed = allowed_labels(num_classes, spec.ignore_index, num_classes - 1)
    if read_with:
        allowed = f'{allowed[:-1]}, read with {read_with})'
    cause = likely_cause(
        num_classes,
        spec.ignore_index,
        dict(pairs),
        np.unique(label_map[~bad]).tolist(),
        (1, *label_map.shape),
    )
    return LabelProblem(
        key,
        f'{count:,} of {bad.size:,} pixels are out of range, {allowed}; '
        f'values: {values_text(pairs)}; first {label_map[y, x]} at (y={y}, '
        f'x={x})',
        f'Likely cause: {cause}',
        count,
        # In the files, SEG002 to SEG006 tell special cases of it apart.
        'SEG001',
    )


def _form_problem(label_map: np.ndarray, key: str) -> LabelProblem | None:
    if not isinstance(label_map, np.ndarray):
        return LabelProblem(
            key,
            f'a label map must be a NumPy array, got '
            f'{type(label_map).__name__}',
            'put ValidateLabels after LoadAnnotations and before the packing '
            'of inputs',
        )
    if label_map.ndim != 2:
        has_colours = label_map.ndim == 3
        colours = likely_cause(0, None, {}, (), (1, *label_map.shape))
        return LabelProblem(
            key,
            'a label map must have one number per pixel, shape (height, '
            f'width), got shape {label_map.shape}',
            f'Likely cause: {colours}'
            if has_colours
            else 'save masks with a height and a width over 1; the loader '
            'drops axes of length 1',
            rule='SEG010' if has_colours else 'SEG014',
        )
    if label_map.dtype.kind not in 'iu':
        return LabelProblem(
            key,
            f'labels must be integers, got dtype {label_map.dtype}',
            'save masks as PNG with 8 bits and one channel; interpolate '
            "label maps with 'nearest'",
        )
    return None


def seg_map_problems(
    results: Mapping[str, Any], spec: SampleSpec
) -> Iterator[LabelProblem]:
    """Find what is wrong with the label maps of a sample."""
    for key in seg_map_keys(results):
        label_map, size = results[key], image_size(results, key)
        problem = _form_problem(label_map, key)
        if problem is not None:
            yield problem
            continue
        if size is not None and label_map.shape != size:
            yield LabelProblem(
                key,
                'label map and image must have the same size, got (height, '
                f'width) {label_map.shape} and {size}',
                'are both of the same picture? Compare the names of the '
                'files, img_suffix and seg_map_suffix, and the EXIF '
                'orientation of the image; or a transform before this one '
                'changes only one of them',
                rule='PAIR001',
            )
        bad = out_of_range(label_map, spec.num_seg_classes, spec.ignore_index)
        if bad.any():
            yield _range_problem(results, key, bad, spec)


_PER_BOX = ('gt_bboxes', 'gt_bboxes_labels', 'gt_ignore_flags', 'gt_masks')


def _counts(results: Mapping[str, Any]) -> dict[str, int]:
    return {
        key: len(results[key])
        for key in _PER_BOX
        if results.get(key) is not None
    }


def same_counts(results: Mapping[str, Any]) -> bool:
    """Tell whether a sample has as many labels, flags and masks as boxes."""
    return len(set(_counts(results).values())) <= 1


def _box_problem(
    rule: str, boxes: np.ndarray, bad: np.ndarray, what: str, remedy: str
) -> Iterator[LabelProblem]:
    count = int(bad.sum())
    if count:
        index = int(bad.argmax())
        numbers = ', '.join(f'{value:g}' for value in boxes[index].tolist())
        yield LabelProblem(
            'gt_bboxes',
            f'{count} of {len(boxes)} boxes {what}; first is box {index}, '
            f'({numbers})',
            remedy,
            count,
            rule,
        )


def _counting(results: Mapping[str, Any]) -> np.ndarray | bool:
    """Which boxes a loss learns from, ``(N,)`` bool; True for all.

    Crowds, and what is too small or too hard, are marked to be ignored, and
    may look as they like.
    """
    flags = results.get('gt_ignore_flags')
    if flags is None or not same_counts(results):
        return True
    return ~as_array(flags).astype(bool)


def _corner_problems(
    boxes: np.ndarray,
    counting: np.ndarray | bool,
    size: tuple[int, int] | None,
    spec: SampleSpec,
) -> Iterator[LabelProblem]:
    """Of boxes ``(N, 4)``, x1 y1 x2 y2 in pixels, those that count."""
    sides = boxes.T.astype(np.float64)
    drop = (
        'correct or remove the annotation, or drop boxes that a crop has cut '
        'off (mmdet.FilterAnnotations) before this check'
    )
    yield from _box_problem(
        'DET002',
        boxes,
        box_limits.lacks_area(sides) & counting,
        'are degenerate, width and height must be over 0',
        f'boxes are (x1, y1, x2, y2) with x1 < x2 and y1 < y2; {drop}',
    )
    yield from _box_problem(
        'DET003',
        boxes,
        box_limits.is_tiny(sides, spec.min_size) & counting,
        f'are too small, width and height must be at least {spec.min_size:g}',
        drop,
    )
    if size is None or spec.box_tolerance == np.inf:
        return
    height, width = size
    clip = (
        'are the boxes of this image, and in pixels of it? Clip them, or '
        'let the transforms before this one clip (clip_border, '
        'bbox_clip_border)'
    )
    yield from _box_problem(
        'DET004',
        boxes,
        box_limits.is_outside(sides, width, height) & counting,
        f'share no pixel with the image, its (height, width) is {size}',
        clip,
    )
    yield from _box_problem(
        'DET005',
        boxes,
        box_limits.is_beyond(sides, width, height, spec.box_tolerance)
        & counting,
        f'reach out of the image by more than {spec.box_tolerance:g} '
        f'pixel(s), its (height, width) is {size}',
        f'{clip}, or raise box_tolerance',
    )


def _label_problems(
    results: Mapping[str, Any], spec: SampleSpec
) -> Iterator[LabelProblem]:
    labels = as_array(results['gt_bboxes_labels'])
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in 'iu'):
        yield LabelProblem(
            'gt_bboxes_labels',
            'labels of boxes must be integers of shape (N,), got dtype '
            f'{labels.dtype} of shape {labels.shape}',
            'let the data set give each instance one int as bbox_label',
        )
        return
    counting = _counting(results)
    for rule, bad in (
        ('DET006', (labels < 0) & counting),
        ('DET007', (labels >= spec.num_classes) & counting),
    ):
        if not bad.any():
            continue
        index, count = int(bad.argmax()), int(bad.sum())
        values, counts = np.unique(labels[bad], return_counts=True)
        pairs = list(zip(values.tolist(), counts.tolist()))
        yield LabelProblem(
            'gt_bboxes_labels',
            f'{count} of {len(labels)} labels are out of range, they must be '
            f'in [0, {spec.num_classes - 1}] (num_classes='
            f'{spec.num_classes}); values: {values_text(pairs)}; first '
            f'{labels[index]} of box {index}',
            'compare metainfo.classes of the data set with the '
            "annotation's categories and with num_classes of the heads; "
            'labels count from 0',
            count,
            rule,
        )


def box_problems(
    results: Mapping[str, Any], spec: SampleSpec
) -> Iterator[LabelProblem]:
    """Find what is wrong with the boxes of a sample and with their labels.

    Boxes are those of mmdet or an array ``(N, 4)``, x1 y1 x2 y2 in pixels. Of
    mmdet's boxes with other parameters, such as rotated ones, only finiteness
    is checked, and so of those that are marked to be ignored.
    """
    if not same_counts(results):
        counts = _counts(results)
        yield LabelProblem(
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
                'gt_bboxes',
                f'boxes must have shape (N, 4), got {boxes.shape}',
                'give (x1, y1, x2, y2) for each; none is shape (0, 4)',
            )
        else:
            yield from _box_problem(
                'DET001',
                boxes,
                ~np.isfinite(boxes).all(1),
                'are not finite',
                'look for NaN or infinity in the annotation, or for a '
                'division by a size of 0 in a transform',
            )
            if boxes.shape[1] == 4:
                size = image_size(results, 'gt_bboxes')
                yield from _corner_problems(
                    boxes, _counting(results), size, spec
                )
    if results.get('gt_bboxes_labels') is not None:
        yield from _label_problems(results, spec)


def _around(mask: np.ndarray | Sequence[np.ndarray]) -> tuple[float, ...]:
    """The box around a bitmap, or around the polygons of an object."""
    if not isinstance(mask, np.ndarray):
        points = [np.asarray(polygon).reshape(-1, 2) for polygon in mask]
        corners = np.concatenate([np.empty((0, 2)), *points])
        if not len(corners):
            return (np.nan,) * 4
        return (*corners.min(0), *corners.max(0))
    rows = np.flatnonzero(mask.max(1)) if mask.size else ()
    if not len(rows):
        return (np.nan,) * 4
    columns = np.flatnonzero(mask[rows[0] : rows[-1] + 1].max(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def boxes_around(masks: Any) -> np.ndarray:
    """The smallest box around each mask of mmdet, float64 ``(N, 4)``.

    x1 y1 x2 y2 in pixels, x2 and y2 after the last pixel; NaN for empty masks.
    """
    boxes = [_around(mask) for mask in masks.masks]
    return np.array(boxes, np.float64).reshape(-1, 4)


def _mask_tolerance(results: Mapping[str, Any]) -> float:
    """In pixels of the image as it is now: differences grow with it."""
    if is_loaded_late(results, 'gt_masks'):
        return box_limits.MASK_TOLERANCE
    scale = float(np.max(results.get('scale_factor', 1)))
    return box_limits.MASK_TOLERANCE * max(scale, 1)


def _agreement_problems(
    results: Mapping[str, Any], boxes: np.ndarray, spec: SampleSpec
) -> Iterator[LabelProblem]:
    around = boxes_around(results['gt_masks'])
    boxes = boxes.astype(np.float64)
    # Masks that the loader could not read are flagged, and empty.
    counts = _counting(results)
    bad = np.isnan(around).any(1) & counts
    if bad.any():
        yield LabelProblem(
            'gt_masks',
            f'{int(bad.sum())} of {len(bad)} masks are empty; first is that '
            f'of box {int(bad.argmax())}',
            'correct or remove the annotation, or drop masks that a crop '
            'has cut off (mmdet.FilterAnnotations with by_mask=True) before '
            'this check',
            int(bad.sum()),
        )
    off = box_limits.is_off_mask(boxes.T, around.T, _mask_tolerance(results))
    bad = off & counts
    if spec.mask_box_iou < 1:
        low = np.maximum(around[:, :2], boxes[:, :2])
        high = np.minimum(around[:, 2:], boxes[:, 2:])
        shared = (high - low).clip(0).prod(1)
        areas = [
            (box[:, 2:] - box[:, :2]).clip(0).prod(1)
            for box in (around, boxes)
        ]
        union = np.maximum(areas[0] + areas[1] - shared, 1e-9)
        bad &= shared / union < spec.mask_box_iou
    if bad.any():
        index = int(bad.argmax())
        pair = (boxes[index].tolist(), around[index].tolist())
        first, other = (', '.join(f'{v:g}' for v in value) for value in pair)
        yield LabelProblem(
            'gt_masks',
            f'{int(bad.sum())} of {len(bad)} masks and boxes disagree, by '
            f'more than {_mask_tolerance(results):g} pixels and with an '
            f'overlap under {spec.mask_box_iou:g}; first is box {index}, '
            f'({first}), whose mask is in ({other})',
            'are masks and boxes in the same order, and changed by the same '
            'transforms? After rotations and crops boxes are loose: lower '
            'mask_box_iou, or compute boxes anew (recompute_bbox=True)',
            int(bad.sum()),
            'DET008',
        )


def mask_problems(
    results: Mapping[str, Any], spec: SampleSpec
) -> Iterator[LabelProblem]:
    """Find what is wrong with mmdet's bitmaps or polygons of a sample.

    Agreement with boxes is checked for ``(N, 4)`` boxes that are as many as
    masks, and not for ignored ones.
    """
    masks = results.get('gt_masks')
    if masks is None:
        return
    size, own = image_size(results, 'gt_masks'), (masks.height, masks.width)
    if size is not None and own != size:
        yield LabelProblem(
            'gt_masks',
            'masks and image must have the same size, got (height, width) '
            f'{own} and {size}',
            'compare height and width in the annotation with those of the '
            'image file, and its EXIF orientation',
            len(masks),
            'PAIR004',
        )
    bitmaps = masks.masks if isinstance(masks.masks, np.ndarray) else None
    if bitmaps is not None and bitmaps.size and bitmaps.max() > 1:
        yield LabelProblem(
            'gt_masks',
            f'bitmaps must hold 0 and 1, got {bitmaps.max()}',
            'write 1 for the object; 255 is for pictures',
            int((bitmaps > 1).any((1, 2)).sum()),
        )
    if results.get('gt_bboxes') is not None and same_counts(results):
        boxes = as_array(results['gt_bboxes'])
        if boxes.ndim == 2 and boxes.shape[1] == 4:
            yield from _agreement_problems(results, boxes, spec)
