"""mmext.CoATSSHead against mmdet's ATSSHead."""

import copy
import warnings

import pytest
import torch
from helpers.tiny_co_dino import NUM_CLASSES, make_maps, tiny_model_cfg
from mmdet.models.dense_heads import ATSSHead
from mmdet.models.task_modules import ATSSAssigner
from mmdet.models.utils import unpack_gt_instances
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope

from mmext.models import CoATSSHead


def _heads() -> tuple[CoATSSHead, ATSSHead]:
    """Ours and mmdet's, with the same weights."""
    init_default_scope('mmdet')
    model = tiny_model_cfg()
    cfg = {k: v for k, v in model['bbox_head'].items() if k[0] != '_'}
    cfg.pop('type')
    cfg['num_classes'] = NUM_CLASSES
    for name in ('train_cfg', 'test_cfg'):
        cfg[name] = ConfigDict(model[name]['bbox_head'])
    with warnings.catch_warnings():
        # Of its own call, which is deprecated, mmdet's head warns.
        warnings.simplefilter('error', UserWarning)
        ours = CoATSSHead(**copy.deepcopy(cfg))
    theirs = ATSSHead(**copy.deepcopy(cfg))
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours.train(), theirs.train()


def _inputs(num_boxes=(3, 0)):
    return make_maps(num_boxes, ((96, 128), (80, 96)))


@pytest.mark.parametrize('pos_weight', [-1, 2.5])
@pytest.mark.parametrize('own', [False, True])
@pytest.mark.parametrize('num_boxes', [(3, 2), (3, 0), (0, 0)])
def test_losses_and_gradients_match_mmdet(num_boxes, own, pos_weight) -> None:
    """Also where mmdet's code assigns, for another type of assigner."""
    ours, theirs = _heads()
    for head in (ours, theirs):
        head.train_cfg.pos_weight = pos_weight
    if own:
        ours.assigner.__class__ = type('Own', (ATSSAssigner,), {})
    feats, samples = _inputs(num_boxes)
    losses, _ = ours.loss_and_positives(feats, samples)
    gts, ignored, metas = unpack_gt_instances(samples)
    expected = theirs.loss_by_feat(*theirs(feats), gts, metas, ignored)
    assert losses.keys() == expected.keys()
    sums = []
    for value in (losses, expected):
        sums.append(torch.stack([torch.stack(v) for v in value.values()]))
    torch.testing.assert_close(*sums)
    grads = [torch.autograd.grad(total.sum(), feats) for total in sums]
    for mine, other in zip(*grads):
        torch.testing.assert_close(mine, other)


def test_positives_are_the_assigned_anchors() -> None:
    ours, _ = _heads()
    feats, samples = _inputs((3, 0))
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
    ours, _ = _heads()
    feats, samples = _inputs()
    _, positives = ours.loss_and_positives(feats, samples, with_feats=True)
    level = feats[1]
    offset = feats[0].shape[-2] * feats[0].shape[-1]
    index = offset + 2 * level.shape[-1] + 3
    torch.testing.assert_close(positives.feats[1][index], level[1, :, 2, 3])
    # The anchor there is centred on the same place.
    centre = positives.boxes[0][index].view(2, 2).mean(0)
    torch.testing.assert_close(centre, torch.tensor([3.0, 2.0]) * 8)


@pytest.mark.parametrize('own', [False, True])
def test_targets_are_boxes_also_when_deltas_are_regressed(own) -> None:
    ours, _ = _heads()
    feats, samples = _inputs()
    _, expected = ours.loss_and_positives(feats, samples)
    ours.reg_decoded_bbox = False
    if own:
        ours.assigner.__class__ = type('Own', (ATSSAssigner,), {})
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
    ours, _ = _heads()
    feats, _ = _inputs()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        maps = ours(feats)
    assert all(m.dtype == torch.float32 for level in maps for m in level)
