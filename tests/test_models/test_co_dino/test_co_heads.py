"""mmext.CoStandardRoIHead against mmdet's StandardRoIHead."""

import copy

import pytest
import torch
from helpers.tiny_co_dino import NUM_CLASSES, make_samples, tiny_model_cfg
from mmdet.models.dense_heads import ATSSHead
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.models.utils import unpack_gt_instances
from mmdet.structures.bbox import bbox_overlaps
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from mmext.models import CoATSSHead, CoStandardRoIHead

CANVAS = (96, 128)
STRIDES = (4, 8, 16, 32, 64)


def _heads() -> tuple[CoStandardRoIHead, StandardRoIHead]:
    """Ours and mmdet's, with the same weights and no random sampling."""
    init_default_scope('mmdet')
    model = tiny_model_cfg()
    cfg = {k: v for k, v in model['roi_head'].items() if k[0] != '_'}
    cfg.pop('type')
    cfg['bbox_head']['num_classes'] = NUM_CLASSES
    settings = {
        name: ConfigDict(model[name]['roi_head'])
        for name in ('train_cfg', 'test_cfg')
    }
    settings['train_cfg'].sampler.update(num=10_000, pos_fraction=1.0)
    ours = CoStandardRoIHead(**copy.deepcopy(cfg), **settings)
    theirs = StandardRoIHead(**copy.deepcopy(cfg), **settings)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours.train(), theirs.train()


def _inputs(num_boxes=(3, 2), num_proposals: int = 30):
    generator = torch.Generator().manual_seed(0)
    feats = [
        torch.randn(
            2,
            32,
            -(-CANVAS[0] // stride),
            -(-CANVAS[1] // stride),
            generator=generator,
            requires_grad=True,
        )
        for stride in STRIDES
    ]
    samples = make_samples(num_boxes, (CANVAS, CANVAS))
    proposals = []
    for sample in samples:
        start = torch.rand(num_proposals, 2, generator=generator) * 60
        extent = torch.rand(num_proposals, 2, generator=generator) * 50 + 5
        boxes = torch.cat((start, start + extent), 1)
        near = sample.gt_instances.bboxes[:num_proposals] + 1.0
        proposals.append(InstanceData(bboxes=torch.cat((boxes, near))))
    return feats, samples, proposals


@pytest.mark.parametrize('num_boxes', [(3, 2), (3, 0), (0, 0)])
def test_losses_and_gradients_match_mmdet(num_boxes) -> None:
    ours, theirs = _heads()
    feats, samples, proposals = _inputs(num_boxes)
    losses, _ = ours.loss_and_positives(feats, proposals, samples)
    expected = theirs.loss(feats, copy.deepcopy(proposals), samples)
    assert losses.keys() == expected.keys()
    grads = []
    for found in (losses, expected):
        total = found['loss_cls'] + found['loss_bbox']
        grads.append(torch.autograd.grad(total, feats))
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value)
    for mine, other in zip(*grads):
        torch.testing.assert_close(mine, other)


def test_proposals_are_not_edited() -> None:
    ours, _ = _heads()
    feats, samples, proposals = _inputs()
    before = copy.deepcopy(proposals)
    ours.loss_and_positives(feats, proposals, samples)
    for now, old in zip(proposals, before):
        assert now.keys() == old.keys()
        assert torch.equal(now.bboxes, old.bboxes)


def test_positives_carry_their_ground_truth() -> None:
    ours, _ = _heads()
    feats, samples, proposals = _inputs()
    _, positives = ours.loss_and_positives(
        feats, proposals, samples, with_feats=True
    )
    for i, sample in enumerate(samples):
        gt = sample.gt_instances
        labels = positives.labels[i]
        chosen = labels < NUM_CLASSES
        # Proposals next to a box, and the boxes themselves.
        assert chosen.sum() >= 2 * len(gt)
        iou = bbox_overlaps(
            positives.boxes[i][chosen],
            positives.targets[i][chosen],
            is_aligned=True,
        )
        assert (iou >= 0.5).all()
        for label, target in zip(labels[chosen], positives.targets[i][chosen]):
            assert label in gt.labels[(gt.bboxes == target).all(1)]
        assert positives.feats[i].shape == (len(labels), 32)


def test_no_proposal_keeps_every_parameter_in_the_graph() -> None:
    ours, _ = _heads()
    ours.bbox_sampler.add_gt_as_proposals = False
    feats, samples, _ = _inputs((0, 0))
    nothing = [InstanceData(bboxes=torch.zeros(0, 4)) for _ in samples]
    losses, positives = ours.loss_and_positives(feats, nothing, samples)
    total = losses['loss_cls'] + losses['loss_bbox']
    assert float(total) == 0
    total.backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) == 0
    assert [len(labels) for labels in positives.labels] == [0, 0]


def test_pools_in_float32_under_autocast() -> None:
    ours, _ = _heads()
    feats, _, proposals = _inputs()
    boxes = proposals[0].bboxes
    rois = torch.cat((torch.zeros(len(boxes), 1), boxes), 1)
    plain = ours._bbox_forward(feats, rois)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = ours._bbox_forward(feats, rois)
    torch.testing.assert_close(cast['bbox_feats'], plain['bbox_feats'])
    assert cast['cls_score'].dtype == torch.float32
    torch.testing.assert_close(
        cast['cls_score'], plain['cls_score'], rtol=0.1, atol=0.05
    )


CO_ATSS_HEAD_STRIDES = (4, 8, 16, 32, 64, 128)


def _co_atss_head_heads() -> tuple[CoATSSHead, ATSSHead]:
    """Ours and mmdet's, with the same weights."""
    init_default_scope('mmdet')
    model = tiny_model_cfg()
    cfg = {k: v for k, v in model['bbox_head'].items() if k[0] != '_'}
    cfg.pop('type')
    cfg['num_classes'] = NUM_CLASSES
    for name in ('train_cfg', 'test_cfg'):
        cfg[name] = ConfigDict(model[name]['bbox_head'])
    ours = CoATSSHead(**copy.deepcopy(cfg))
    theirs = ATSSHead(**copy.deepcopy(cfg))
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours.train(), theirs.train()


def _co_atss_head_inputs(num_boxes=(3, 0), sizes=((96, 128), (80, 96))):
    generator = torch.Generator().manual_seed(0)
    feats = [
        torch.randn(
            len(sizes),
            32,
            -(-CANVAS[0] // stride),
            -(-CANVAS[1] // stride),
            generator=generator,
            requires_grad=True,
        )
        for stride in CO_ATSS_HEAD_STRIDES
    ]
    samples = make_samples(num_boxes, sizes)
    for sample in samples:
        sample.set_metainfo(
            {'pad_shape': sample.img_shape, 'batch_input_shape': CANVAS}
        )
    return feats, samples


@pytest.mark.parametrize('num_boxes', [(3, 2), (3, 0), (0, 0)])
def test_co_atss_head_losses_and_gradients_match_mmdet(num_boxes) -> None:
    ours, theirs = _co_atss_head_heads()
    feats, samples = _co_atss_head_inputs(num_boxes)
    losses, _ = ours.loss_and_positives(feats, samples)
    gts, ignored, metas = unpack_gt_instances(samples)
    expected = theirs.loss_by_feat(*theirs(feats), gts, metas, ignored)
    assert losses.keys() == expected.keys()
    sums = []
    for found in (losses, expected):
        sums.append(torch.stack([torch.stack(v) for v in found.values()]))
    torch.testing.assert_close(*sums)
    grads = [torch.autograd.grad(total.sum(), feats) for total in sums]
    for mine, other in zip(*grads):
        torch.testing.assert_close(mine, other)


def test_positives_are_the_assigned_anchors() -> None:
    ours, _ = _co_atss_head_heads()
    feats, samples = _co_atss_head_inputs((3, 0))
    _, positives = ours.loss_and_positives(feats, samples)
    total = sum(feat.shape[-2] * feat.shape[-1] for feat in feats)
    for boxes, labels, targets in zip(
        positives.boxes, positives.labels, positives.targets
    ):
        assert boxes.shape == targets.shape == (total, 4)
        assert labels.shape == (total,)
    first = positives.labels[0]
    chosen = (first >= 0) & (first < NUM_CLASSES)
    assert chosen.sum() > 0
    gt = samples[0].gt_instances
    for label, target in zip(first[chosen], positives.targets[0][chosen]):
        match = (gt.bboxes == target).all(1)
        assert match.any()
        assert label in gt.labels[match]
    # No box, no positive; anchors outside the smaller image are never used.
    second = positives.labels[1]
    assert set(second.tolist()) == {-1, NUM_CLASSES}
    assert positives.feats is None


def test_features_are_those_at_the_anchors() -> None:
    ours, _ = _co_atss_head_heads()
    feats, samples = _co_atss_head_inputs()
    _, positives = ours.loss_and_positives(feats, samples, with_feats=True)
    level = feats[1]
    offset = feats[0].shape[-2] * feats[0].shape[-1]
    index = offset + 2 * level.shape[-1] + 3
    torch.testing.assert_close(positives.feats[1][index], level[1, :, 2, 3])
    # The anchor there is centred on the same place.
    centre = positives.boxes[0][index].view(2, 2).mean(0)
    torch.testing.assert_close(centre, torch.tensor([3.0, 2.0]) * 8)


def test_targets_are_boxes_also_when_deltas_are_regressed() -> None:
    ours, _ = _co_atss_head_heads()
    feats, samples = _co_atss_head_inputs()
    _, expected = ours.loss_and_positives(feats, samples)
    ours.reg_decoded_bbox = False
    _, positives = ours.loss_and_positives(feats, samples)
    chosen = positives.labels[0] == expected.labels[0]
    chosen &= (positives.labels[0] >= 0) & (positives.labels[0] < NUM_CLASSES)
    torch.testing.assert_close(
        positives.targets[0][chosen],
        expected.targets[0][chosen],
        rtol=1e-4,
        atol=1e-3,
    )


def test_predictions_leave_autocast_in_float32() -> None:
    ours, _ = _co_atss_head_heads()
    feats, _ = _co_atss_head_inputs()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        maps = ours(feats)
    assert all(m.dtype == torch.float32 for level in maps for m in level)
