"""Proposals and losses of the RPN against mmdet's RPNHead."""

import copy
from unittest import mock

import pytest
import torch
from helpers.device import needs_device
from helpers.tiny_co_dino import make_maps, tiny_model_cfg
from mmcv.ops import batched_nms
from mmdet.models.dense_heads import RPNHead
from mmdet.models.task_modules import (
    DeltaXYWHBBoxCoder,
    MaxIoUAssigner,
    RandomSampler,
)
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope

from mmext.checks.device.rehearse import Recorder, parameters_stay
from mmext.checks.device.tensor import watched_device
from mmext.models.co_dino.region_proposals import propose_and_learn

CANVAS = (96, 128)
CFG = ConfigDict(
    nms_pre=200,
    max_per_img=60,
    nms={'type': 'nms', 'iou_threshold': 0.7},
    min_bbox_size=0,
)


class _Own(RPNHead):
    """A type of its own, whose methods are called."""


def make_head(kind: type = RPNHead) -> RPNHead:
    init_default_scope('mmdet')
    model = tiny_model_cfg()
    cfg = {
        k: v
        for k, v in model['rpn_head'].items()
        if k not in ('type', '_scope_')
    }
    for name in ('train_cfg', 'test_cfg'):
        cfg[name] = ConfigDict(copy.deepcopy(model[name]['rpn_head']))
    torch.manual_seed(0)
    return kind(**copy.deepcopy(cfg)).train()


def results(head, feats, samples, cfg=CFG) -> tuple:
    with mock.patch('torch.randperm', torch.arange):
        return propose_and_learn(head, feats, samples, cfg)


def assert_same_losses(ours, theirs, feats, samples) -> None:
    """And the same gradients of the maps and of all parameters."""
    output = []
    for head in (ours, theirs):
        _, losses = results(head, feats, samples)
        grads = torch.autograd.grad(
            sum(sum(levels) for levels in losses.values()),
            [*feats, *head.parameters()],
        )
        output.append((losses, grads))
    (losses, grads), (expected, others) = output
    assert losses.keys() == expected.keys()
    for name, levels in expected.items():
        torch.testing.assert_close(
            torch.stack(losses[name]), torch.stack(levels), msg=name
        )
    for mine, other in zip(grads, others):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize('pos_weight', [-1, 2.0])
@pytest.mark.parametrize(
    ('num_boxes', 'sizes'),
    [
        ((3, 2), (CANVAS, (80, 96))),
        ((0, 4), ((64, 60), CANVAS)),
        ((0, 0), (CANVAS, CANVAS)),
        ((40,), (CANVAS,)),
    ],
)
def test_losses_and_gradients_are_mmdets(num_boxes, sizes, pos_weight) -> None:
    heads = make_head(), make_head(_Own)
    for head in heads:
        head.train_cfg.pos_weight = pos_weight
    assert_same_losses(*heads, *make_maps(num_boxes, sizes))


@pytest.mark.parametrize(
    ('assigner', 'sampler', 'coder'),
    [
        (
            # As of the heads of regions.
            dict(
                pos_iou_thr=0.5,
                neg_iou_thr=0.5,
                min_pos_iou=0.5,
                match_low_quality=False,
            ),
            dict(num=64, pos_fraction=0.25, neg_pos_ub=2),
            dict(target_stds=(0.1, 0.1, 0.2, 0.2)),
        ),
        (
            dict(pos_iou_thr=0.4, neg_iou_thr=(0.1, 0.3), min_pos_iou=0.0),
            dict(num=5000, pos_fraction=1.0),
            dict(target_means=(0.1, 0.0, -0.2, 0.0), clip_border=False),
        ),
    ],
)
@pytest.mark.parametrize('ties', [False, True])
def test_of_other_settings_too(assigner, sampler, coder, ties) -> None:
    """Also where anchors overlap several boxes alike."""
    heads = make_head(), make_head(_Own)
    for head in heads:
        head.assigner = MaxIoUAssigner(**assigner)
        head.sampler = RandomSampler(add_gt_as_proposals=False, **sampler)
        head.bbox_coder = DeltaXYWHBBoxCoder(**coder)
    feats, samples = make_maps((7, 3), ((64, 60), CANVAS))
    if ties:
        for sample in samples:
            boxes = (sample.gt_instances.bboxes / 16).round() * 16
            boxes[:, 2:] += 16
            sample.gt_instances.bboxes = boxes
    assert_same_losses(*heads, feats, samples)
    ours, theirs = (results(head, feats, samples)[0] for head in heads)
    for mine, other in zip(ours.instances(), theirs.instances()):
        torch.testing.assert_close(mine.bboxes, other.bboxes)


@needs_device
def test_one_nms_for_many_boxes_is_that_of_each_level() -> None:
    """On a GPU; on a CPU mmcv goes group by group beyond 10,000 boxes."""
    head = make_head()
    with torch.no_grad():
        head.rpn_reg.weight.mul_(20)
        head.rpn_cls.weight.mul_(3)
    moved = copy.deepcopy(head)
    feats, samples = make_maps((3, 2, 0, 1), (CANVAS, (80, 96)) * 2)
    cfg = ConfigDict({**CFG, 'nms_pre': -1, 'max_per_img': 1000})
    module = 'mmext.models.co_dino.region_proposals.batched_nms'
    with mock.patch(module, wraps=batched_nms) as nms:
        expected, _ = results(head, feats, samples, cfg)
    assert len(nms.call_args.args[0]) > 10_000
    recorder = Recorder(moved)
    with watched_device(recorder) as device:
        with parameters_stay():
            moved.to(device)
        feats = [feat.to(device) for feat in feats]
        samples = [sample.to(device) for sample in samples]
        with recorder.watching():
            actual, _ = results(moved, feats, samples, cfg)
        actual = [part.cpu() for part in actual]
    assert sum(recorder.reads.values()) == 1, recorder.reads
    for mine, right in zip(actual, expected):
        assert torch.equal(mine, right)


@pytest.mark.parametrize(
    'change',
    [
        {},
        {'nms_pre': -1},
        {'max_per_img': 5},
        {'min_bbox_size': 12},
        {'min_bbox_size': 1000},
        {'min_bbox_size': -1},
        {'nms': {'type': 'soft_nms', 'iou_threshold': 0.5}},
    ],
    ids=str,
)
def test_proposals_are_mmdets(change) -> None:
    ours, theirs = make_head(), make_head(_Own)
    with torch.no_grad():
        for head in (ours, theirs):
            head.rpn_reg.weight.mul_(20)
            # Not more, since equal scores have no order.
            head.rpn_cls.weight.mul_(3)
    feats, samples = make_maps((3, 2), (CANVAS, (80, 96)))
    cfg = ConfigDict({**CFG, **change})
    before = copy.deepcopy(cfg)
    result, _ = results(ours, feats, samples, cfg)
    expected, _ = results(theirs, feats, samples, cfg)
    assert cfg == before
    assert not result.boxes.requires_grad
    for mine, other in zip(result.instances(), expected.instances()):
        torch.testing.assert_close(mine.bboxes, other.bboxes)
    assert not result.boxes[~result.real].any()
    assert (result.real.sum(1) > 0).all() == (
        change != {'min_bbox_size': 1000}
    )


def test_many_boxes_are_suppressed_together() -> None:
    """Beyond the number from which mmcv goes from group to group."""
    head = make_head()
    feats, samples = make_maps((3, 2), (CANVAS, (80, 96)))
    cfg = ConfigDict({**CFG, 'nms_pre': -1, 'max_per_img': 1000})
    apart, _ = results(head, feats, samples, cfg)
    cfg.nms.split_thr = 10
    together, _ = results(head, feats, samples, cfg)
    assert torch.equal(apart.real, together.real)
    assert torch.equal(apart.boxes, together.boxes)
