"""mmext.CoStandardRoIHead against mmdet's StandardRoIHead."""

import copy
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.device import needs_device
from helpers.tiny_co_dino import NUM_CLASSES, make_maps, tiny_model_cfg
from mmdet.models.losses import L1Loss
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from mmdet.models.task_modules import RandomSampler
from mmdet.registry import MODELS
from mmdet.structures.bbox import bbox_overlaps
from mmdet.structures.mask import PolygonMasks
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope

from mmext.checks.device.rehearse import Recorder, parameters_stay
from mmext.checks.device.tensor import watched_device
from mmext.models import CoStandardRoIHead
from mmext.models.co_dino import co_roi_head
from mmext.models.co_dino.positives import UNUSED_LABEL
from mmext.models.co_dino.region_proposals import RegionProposals

CANVAS = (96, 128)
STRIDES = (4, 8, 16, 32, 64)
MASKS = '5scale_r50_instance'


def _heads(
    base: str = '5scale_r50', **parts
) -> tuple[CoStandardRoIHead, StandardRoIHead]:
    """Ours and mmdet's, with the same weights and no random sampling."""
    init_default_scope('mmdet')
    model = tiny_model_cfg(base)
    model['roi_head'].update(parts)
    cfg = {k: v for k, v in model['roi_head'].items() if k[0] != '_'}
    cfg.pop('type')
    for name in {'bbox_head', 'mask_head'} & cfg.keys():
        cfg[name]['num_classes'] = NUM_CLASSES
    settings = {
        name: ConfigDict(model[name]['roi_head'])
        for name in ('train_cfg', 'test_cfg')
    }
    settings['train_cfg'].sampler.update(num=10_000, pos_fraction=1.0)
    ours = CoStandardRoIHead(**copy.deepcopy(cfg), **settings)
    theirs = StandardRoIHead(**copy.deepcopy(cfg), **settings)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours.train(), theirs.train()


def _as_lists(ours: CoStandardRoIHead) -> None:
    """Let mmdet's code sample: of a sampler of its own it does not know."""
    ours.bbox_sampler.__class__ = type('Own', (RandomSampler,), {})


def _inputs(num_boxes=(3, 2), num_proposals: int = 30):
    feats, samples = make_maps(num_boxes, (CANVAS, CANVAS), STRIDES)
    generator = torch.Generator().manual_seed(4)
    proposals = []
    for sample in samples:
        start = torch.rand(num_proposals, 2, generator=generator) * 60
        extent = torch.rand(num_proposals, 2, generator=generator) * 50 + 5
        boxes = torch.cat((start, start + extent), 1)
        near = sample.gt_instances.bboxes[:num_proposals] + 1.0
        proposals.append(torch.cat((boxes, near)))
    pad = torch.nn.utils.rnn.pad_sequence
    real = [torch.ones(len(boxes), dtype=torch.bool) for boxes in proposals]
    padded = RegionProposals(pad(proposals, True), pad(real, True))
    return feats, samples, padded


@pytest.mark.parametrize('as_lists', [False, True])
@pytest.mark.parametrize('num_boxes', [(3, 2), (3, 0), (0, 0)])
def test_losses_and_gradients_match_mmdet(num_boxes, as_lists) -> None:
    ours, theirs = _heads()
    if as_lists:
        _as_lists(ours)
    feats, samples, proposals = _inputs(num_boxes)
    losses, _ = ours.loss_and_positives(feats, proposals, samples)
    expected = theirs.loss(feats, proposals.instances(), samples)
    assert losses.keys() == expected.keys()
    grads = []
    for results in (losses, expected):
        total = results['loss_cls'] + results['loss_bbox']
        grads.append(torch.autograd.grad(total, feats))
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value)
    for mine, other in zip(*grads):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize('agnostic', [False, True])
def test_deltas_and_fewer_samples_match_mmdet(agnostic) -> None:
    """Half of 40 proposals, positives first, and deltas instead of boxes."""
    init_default_scope('mmdet')
    pair = _heads()
    for head in pair:
        head.bbox_sampler.num, head.bbox_sampler.pos_fraction = 16, 0.25
        head.train_cfg.pos_weight = 3.0
        head.bbox_head.reg_decoded_bbox = False
        head.bbox_head.loss_bbox = L1Loss(loss_weight=2.0)
        if agnostic:
            head.bbox_head.reg_class_agnostic = True
            torch.manual_seed(0)
            head.bbox_head.fc_reg = torch.nn.Linear(32, 4)
    ours, theirs = pair
    feats, samples, proposals = _inputs((3, 1))
    with mock.patch('torch.randperm', torch.arange):
        losses, positives = ours.loss_and_positives(feats, proposals, samples)
        expected = theirs.loss(feats, proposals.instances(), samples)
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, msg=name)
    assert (positives.labels >= 0).sum(1).tolist() == [16, 16]
    assert ((positives.labels >= 0) & (positives.labels < NUM_CLASSES)).sum(
        1
    ).tolist() == [4, 2]


@pytest.mark.parametrize('as_lists', [False, True])
def test_positives_carry_their_ground_truth(as_lists) -> None:
    ours, _ = _heads()
    if as_lists:
        _as_lists(ours)
    feats, samples, proposals = _inputs()
    _, positives = ours.loss_and_positives(
        feats, proposals, samples, with_feats=True
    )
    for i, sample in enumerate(samples):
        gt = sample.gt_instances
        labels = positives.labels[i]
        chosen = (labels >= 0) & (labels < NUM_CLASSES)
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
    assert positives.feats.shape == (*positives.labels.shape, 32)
    assert not positives.feats[positives.labels < 0].any()
    assert positives.feats[positives.labels >= 0].any(-1).all()


@pytest.mark.parametrize('as_lists', [False, True])
def test_no_proposal_keeps_every_parameter_in_the_graph(as_lists) -> None:
    ours, _ = _heads()
    if as_lists:
        _as_lists(ours)
    ours.bbox_sampler.add_gt_as_proposals = False
    feats, samples, _ = _inputs((0, 0))
    nothing = RegionProposals(
        torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool)
    )
    losses, positives = ours.loss_and_positives(feats, nothing, samples)
    total = losses['loss_cls'] + losses['loss_bbox']
    assert float(total) == 0
    total.backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) == 0
    assert (positives.labels == UNUSED_LABEL).all()


@pytest.mark.parametrize(
    ('forward', 'pooled', 'output'),
    [
        ('_bbox_forward', 'bbox_feats', 'cls_score'),
        ('_mask_forward', 'mask_feats', 'mask_preds'),
    ],
)
def test_pools_in_float32_under_autocast(forward, pooled, output) -> None:
    ours, _ = _heads(MASKS)
    feats, _, proposals = _inputs()
    rois = torch.cat((torch.zeros(30, 1), proposals.boxes[0, :30]), 1)
    plain = getattr(ours, forward)(feats, rois)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = getattr(ours, forward)(feats, rois)
    torch.testing.assert_close(cast[pooled], plain[pooled])
    assert cast[output].dtype == torch.float32


def test_half_maps_are_pooled_in_float32() -> None:
    """mmdet would round the corners of RoIs to the type of the maps."""
    ours, _ = _heads()
    feats, samples, proposals = _inputs()
    halves = [feat.bfloat16() for feat in feats]
    results = []
    for maps, enabled in (
        ([h.float() for h in halves], False),
        (halves, True),
    ):
        with (
            mock.patch('torch.randperm', torch.arange),
            torch.autocast('cpu', dtype=torch.bfloat16, enabled=enabled),
        ):
            _, positives = ours.loss_and_positives(
                maps, proposals, samples, with_feats=True
            )
        results.append(positives.feats)
    assert results[1].dtype == torch.float32
    torch.testing.assert_close(*results)


# Masks from features of their own, or from those of the boxes.
OWN, SHARED = {}, {'mask_roi_extractor': None}


@pytest.mark.parametrize('as_lists', [False, True])
@pytest.mark.parametrize('parts', [OWN, SHARED], ids=['own', 'shared'])
@pytest.mark.parametrize('num_boxes', [(3, 2), (3, 0), (0, 0)])
def test_mask_losses_and_gradients_match_mmdet(
    num_boxes, parts, as_lists
) -> None:
    ours, theirs = _heads(MASKS, **parts)
    # Only mmdet's code has its order of the samples, in which it sums up.
    same = {'rtol': 0, 'atol': 0} if as_lists else {}
    if as_lists:
        _as_lists(ours)
    for head in (ours, theirs):
        head.train_cfg.mask_size = 28 if parts is OWN else 14
    feats, samples, proposals = _inputs(num_boxes)
    losses, _ = ours.loss_and_positives(feats, proposals, samples)
    expected = theirs.loss(feats, proposals.instances(), samples)
    assert losses.keys() == expected.keys()
    assert bool(losses['loss_mask'] > 0.1) == any(num_boxes)
    grads = []
    for head, result in ((ours, losses), (theirs, expected)):
        total = result['loss_cls'] + result['loss_bbox'] + result['loss_mask']
        weights = list(head.parameters())
        # All are used, also without any object.
        grads.append(torch.autograd.grad(total, [*feats, *weights]))
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, **same)
    for mine, other in zip(*grads):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize('rescale', [False, True])
@pytest.mark.parametrize('counts', [(4, 2), (0, 3), (0, 0)])
def test_masks_of_given_boxes_match_mmdet(counts, rescale) -> None:
    pair = _heads(MASKS)
    feats, samples, _ = _inputs(counts)
    metas = [
        {'ori_shape': (48, 50), 'scale_factor': (128 / 50, 96 / 48)}
        for _ in counts
    ]
    results = []
    for head in pair:
        boxes = [copy.deepcopy(sample.gt_instances) for sample in samples]
        for box in boxes:
            del box.masks
        with torch.no_grad():
            results.append(head.predict_mask(feats, metas, boxes, rescale))
    size = (48, 50) if rescale else CANVAS
    for count, mine, other in zip(counts, *results):
        # mmdet gives a picture without boxes its original size.
        assert len(mine.masks) == count
        assert not count or mine.masks.shape[1:] == size
        assert mine.masks.dtype == torch.bool
        assert torch.equal(mine.masks, other.masks)
        assert torch.equal(mine.bboxes, other.bboxes)
        assert mine.masks.any() == (count > 0)


@needs_device
@pytest.mark.parametrize('rescale', [False, True])
@pytest.mark.parametrize(
    'change',
    [{}, {'class_agnostic': True}, {'mask_thr_binary': -1}],
    ids=str,
)
def test_masks_on_a_device_match_mmdet(change, rescale) -> None:
    """Bit by bit, and the host does not wait where it has the boxes."""
    pair = _heads(MASKS)
    for head in pair:
        if 'class_agnostic' in change:
            head.mask_head.class_agnostic = True
        else:
            head.test_cfg.update(change)
    feats, samples, _ = _inputs((4, 2))
    metas = [{'ori_shape': (33, 50), 'scale_factor': (2.56, 2.9)}] * 2
    results, reads = [], []
    for head in pair:
        recorder = Recorder(head)
        with watched_device(recorder) as device, torch.no_grad():
            boxes = [copy.deepcopy(sample.gt_instances) for sample in samples]
            for box in boxes:
                del box.masks
            if head is pair[1]:
                boxes = [box.to(device) for box in boxes]
            with parameters_stay():
                head.to(device)
            maps = [feat.to(device) for feat in feats]
            with recorder.watching():
                head.predict_mask(maps, metas, boxes, rescale)
            assert all(box.masks.is_cuda for box in boxes)
            results.append([box.cpu() for box in boxes])
        reads.append(sum(recorder.reads.values()))
    plain = 'mask_thr_binary' not in change
    assert reads[0] == 0 or not plain
    assert reads[1] >= 4
    for mine, other in zip(*results):
        assert mine.masks.any()
        assert torch.equal(mine.masks, other.masks)
        assert torch.equal(mine.bboxes, other.bboxes)


@pytest.mark.parametrize('most', [1, 5000, 2**26])
def test_pasted_masks_are_those_of_mmdet(most, monkeypatch) -> None:
    """Also of boxes that are empty, or not all in the image."""
    monkeypatch.setattr(co_roi_head, 'MAX_PASTED_PIXELS', most)
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(40, 1, 28, 28, generator=generator)
    start = torch.rand(40, 2, generator=generator) * 60 - 10
    extent = torch.rand(40, 2, generator=generator) * 40
    boxes = torch.cat((start, start + extent), 1)
    boxes[0, 2], boxes[1, 3], boxes[2, 2:] = boxes[0, 0], boxes[1, 1], 20.0
    boxes[2, :2] = 20.0
    boxes[3], boxes[4] = torch.tensor([[4.5, 4, 4.5, 9], [-9, -9, 99, 99]])
    expected, _ = _do_paste_mask(masks, boxes, 48, 50, skip_empty=False)
    actual = co_roi_head.paste_masks(masks, boxes, (48, 50), 0.5)
    assert actual.flatten(1).any(1).sum() > 30
    assert torch.equal(actual, expected >= 0.5)


@pytest.mark.parametrize('as_lists', [False, True])
def test_masks_keep_every_parameter_in_use_without_proposals(as_lists) -> None:
    ours, _ = _heads(MASKS)
    if as_lists:
        _as_lists(ours)
    ours.bbox_sampler.add_gt_as_proposals = False
    feats, samples, _ = _inputs((0, 0))
    nothing = RegionProposals(
        torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool)
    )
    losses, _ = ours.loss_and_positives(feats, nothing, samples)
    sum(losses.values()).backward()
    unused = [n for n, p in ours.named_parameters() if p.grad is None]
    assert not unused


@pytest.mark.parametrize(
    ('settings', 'key'),
    [('train_cfg', 'mask_size'), ('test_cfg', 'mask_thr_binary')],
)
def test_a_mask_head_needs_settings(settings, key) -> None:
    model = tiny_model_cfg(MASKS)
    del model[settings]['roi_head'][key]
    with pytest.raises(
        ValueError, match=f'set model.{settings}.roi_head.{key}'
    ):
        MODELS.build(model)


@pytest.mark.parametrize('kind', ['polygons', 'sizes'])
def test_masks_that_no_tensor_can_hold_are_left_to_mmdet(kind) -> None:
    ours, theirs = _heads(MASKS)
    feats, samples, proposals = _inputs()
    masks = [sample.gt_instances.masks for sample in samples]
    if kind == 'sizes':
        samples[1].gt_instances.masks = masks[1].pad((112, 128))
    else:
        for sample in samples:
            x1, y1, x2, y2 = sample.gt_instances.bboxes.numpy().T
            corners = np.stack([x1, y1, x2, y1, x2, y2, x1, y2], 1)
            sample.gt_instances.masks = PolygonMasks(
                [[points] for points in corners], *CANVAS
            )
    losses, _ = ours.loss_and_positives(feats, proposals, samples)
    expected = theirs.loss(feats, proposals.instances(), samples)
    assert torch.equal(losses['loss_mask'], expected['loss_mask'])


def test_a_mask_head_needs_masks() -> None:
    ours, _ = _heads(MASKS)
    feats, samples, proposals = _inputs()
    del samples[1].gt_instances.masks
    with pytest.raises(ValueError, match=r'must carry masks .* in sample 1; '):
        ours.loss_and_positives(feats, proposals, samples)
