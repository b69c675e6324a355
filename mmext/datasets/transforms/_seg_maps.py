"""Label maps: one class per pixel."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...utils.label_spec import allowed_labels, likely_cause, values_text
from .label_problem import LabelProblem, SampleSpec, image_size

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
        'range',
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
            'dtype',
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
            'shape',
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
            'dtype',
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
                'shape',
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
