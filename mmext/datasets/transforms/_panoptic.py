"""Panoptic labels: segments, their masks, and the semantic map."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ._boxes import same_counts
from .label_problem import LabelProblem, LabelSpec, as_array

__all__ = ['panoptic_problems']


def _segment_problems(
    segments: list[dict], spec: LabelSpec
) -> Iterator[LabelProblem]:
    ids = [segment['id'] for segment in segments]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        yield LabelProblem(
            'panoptic',
            'segments_info',
            f'ids of segments must differ, got more than one of {twice[:5]}',
            'give each segment of an image an id of its own in the '
            'annotation and in its PNG',
            len(twice),
        )
    bad = [
        segment
        for segment in segments
        if not 0 <= segment['category'] < spec.num_seg_classes
    ]
    if bad:
        yield LabelProblem(
            'panoptic',
            'segments_info',
            f'{len(bad)} of {len(segments)} segments have a class out of '
            f'range, it must be in [0, {spec.num_seg_classes - 1}]; first is '
            f'{bad[0]["category"]} of segment {bad[0]["id"]}',
            'compare metainfo (classes, thing_classes, stuff_classes) of the '
            "data set with the annotation's categories",
            len(bad),
        )


def _map_problems(
    results: Mapping[str, Any], spec: LabelSpec
) -> Iterator[LabelProblem]:
    """Each mask must have one class, its own, in the semantic map."""
    label_map, masks = results['gt_seg_map'], results['gt_masks'].masks
    labels = as_array(results['gt_bboxes_labels'])
    wrong = []
    for index, (mask, label) in enumerate(zip(masks, labels.tolist())):
        inside = label_map[mask.astype(bool)]
        right = np.count_nonzero(inside == label)
        if right < spec.panoptic_agreement * inside.size:
            values, counts = np.unique(inside, return_counts=True)
            most = values[counts.argmax()]
            wrong.append((index, label, right / inside.size, most))
    if wrong:
        index, label, part, most = wrong[0]
        yield LabelProblem(
            'panoptic',
            'gt_seg_map',
            f'{len(wrong)} of {len(masks)} masks have another class in the '
            f'semantic map; first is mask {index} with label {label}: '
            f'{100 * part:.3g} % of its pixels have it, at least '
            f'{100 * spec.panoptic_agreement:g} % must, most are {most}',
            'are segments and boxes in the same order, and the label map '
            'changed by the same transforms? Or lower panoptic_agreement',
            len(wrong),
        )


def _overlap_problems(masks: np.ndarray) -> Iterator[LabelProblem]:
    covered = masks.astype(bool).sum(0, dtype=np.uint16)
    count = int((covered > 1).sum())
    if count:
        y, x = np.unravel_index((covered > 1).argmax(), covered.shape)
        yield LabelProblem(
            'panoptic',
            'gt_masks',
            f'{count:,} pixels belong to more than one instance, the first '
            f'at (y={y}, x={x})',
            'segments of a panoptic annotation do not overlap; use a '
            'data set for instances if they do',
            count,
        )


def panoptic_problems(
    results: Mapping[str, Any], spec: LabelSpec
) -> Iterator[LabelProblem]:
    """Find where segments, instance masks and semantic map disagree.

    Args:
        results: The sample; it is panoptic if it has ``segments_info``.
        spec: What labels must be.

    Yields:
        Each problem. Masks and map are compared where both have the same
        size and there is a label for each mask.
    """
    segments = results.get('segments_info')
    if segments is None:
        return
    yield from _segment_problems(segments, spec)
    masks = getattr(results.get('gt_masks'), 'masks', None)
    if not isinstance(masks, np.ndarray) or not len(masks):
        return
    yield from _overlap_problems(masks)
    label_map = results.get('gt_seg_map')
    if (
        label_map is not None
        and label_map.shape == masks.shape[1:]
        and results.get('gt_bboxes_labels') is not None
        and same_counts(results)
    ):
        yield from _map_problems(results, spec)
