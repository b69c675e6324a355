"""Matching of all layers together against one matching after the other."""

import copy

import pytest
import torch
from helpers.tiny_co_dino import make_samples
from mmdet.models.task_modules import HungarianAssigner
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_xyxy_to_cxcywh
from mmengine.structures import InstanceData

from mmext.models.co_dino.matching import (
    match_queries,
    matched_targets,
    read_ground_truth,
)

K = 5
SHAPES = ((60, 80), (40, 50), (70, 70))
COSTS = [
    {'type': 'mmdet.FocalLossCost', 'weight': 2.0},
    {'type': 'mmdet.BBoxL1Cost', 'weight': 5.0, 'box_format': 'xywh'},
    {'type': 'mmdet.IoUCost', 'iou_mode': 'giou', 'weight': 2.0},
]


class _Assigner(HungarianAssigner):
    """A type of its own, which is asked one image at a time."""


def predictions(count: int) -> tuple:
    generator = torch.Generator().manual_seed(1)
    shape = (3, len(SHAPES), count)
    return (
        torch.randn(*shape, K, generator=generator),
        torch.rand(*shape, 4, generator=generator),
    )


@pytest.mark.parametrize('kind', [HungarianAssigner, _Assigner])
@pytest.mark.parametrize('num_boxes', [(3, 0, 6), (0, 0, 0), (9, 2, 1)])
def test_each_layer_and_image_is_matched_as_alone(num_boxes, kind) -> None:
    """Also where an image has more boxes than there are queries."""
    assigner = kind(copy.deepcopy(COSTS))
    samples = make_samples(num_boxes, SHAPES, num_classes=K)
    scores, boxes = predictions(7)
    truth = read_ground_truth(samples, K)
    # Another part, of other layers and queries, is matched by itself.
    parts = [
        (scores, boxes, samples),
        (scores[:1, :, :5], boxes[:1, :, :5], samples),
    ]
    (matched, fewer), numbers = match_queries(
        assigner, parts, truth.scales, torch.tensor([3, 0])
    )
    assert numbers == [3, 0]
    (alone,), _ = match_queries(assigner, parts[1:], truth.scales)
    assert torch.equal(fewer, alone)
    assert matched.dtype == torch.int64
    for layer in range(3):
        for i, sample in enumerate(samples):
            height, width = sample.img_shape
            size = torch.tensor([width, height, width, height])
            expected = assigner.assign(
                InstanceData(
                    scores=scores[layer, i],
                    bboxes=bbox_cxcywh_to_xyxy(boxes[layer, i]) * size,
                ),
                sample.gt_instances,
                img_meta=sample.metainfo,
            )
            assert torch.equal(matched[layer, i], expected.gt_inds - 1)
    targets = matched_targets('{}', matched, truth, K)
    positive = matched >= 0
    assert torch.equal(targets.box_weights > 0, positive)
    assert torch.equal(targets.negatives > 0, ~positive)
    assert (targets.labels[~positive] == K).all()
    for layer, i, query in positive.nonzero():
        gts, box = samples[i].gt_instances, matched[layer, i, query]
        assert targets.labels[layer, i, query] == gts.labels[box]
        height, width = samples[i].img_shape
        torch.testing.assert_close(
            targets.boxes[layer, i, query],
            bbox_xyxy_to_cxcywh(
                gts.bboxes[box] / torch.tensor([width, height, width, height])
            ),
        )


def test_nan_is_an_error() -> None:
    assigner = HungarianAssigner(copy.deepcopy(COSTS))
    samples = make_samples((2, 1, 0), SHAPES, num_classes=K)
    scores, boxes = predictions(4)
    scores[1, 0, 2] = float('nan')
    with pytest.raises(ValueError, match='invalid numeric entries'):
        match_queries(
            assigner,
            [(scores, boxes, samples)],
            read_ground_truth(samples, K).scales,
        )
