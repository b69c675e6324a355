"""Assignment, samples and box arithmetic against mmdet's."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from mmdet.models.task_modules import (
    AnchorGenerator,
    ATSSAssigner,
    DeltaXYWHBBoxCoder,
    MaxIoUAssigner,
    PseudoSampler,
    RandomSampler,
)
from mmdet.models.task_modules.assigners import AssignResult
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

from mmext.models.co_dino.anchors import (
    IGNORED,
    NEGATIVE,
    anchor_grid,
    assign_atss,
    assign_max_iou,
    assigns_plainly,
    decode_boxes,
    draw_samples,
    encode_boxes,
)

SIZES = [(12, 16), (6, 8), (3, 4)]
STRIDES = [8, 16, 32]


@pytest.fixture(autouse=True)
def _scope() -> None:
    init_default_scope('mmdet')


def boxes_of(count: int, seed: int = 0, integers: bool = False):
    generator = torch.Generator().manual_seed(seed)
    start = torch.rand(count, 2, generator=generator) * 70
    extent = 4 + torch.rand(count, 2, generator=generator) * 50
    boxes = torch.cat((start, start + extent), 1)
    return (
        (boxes / 16).round() * 16 + boxes.new_tensor([0, 0, 16, 16])
        if integers
        else boxes
    )


def head_with(scales, ratios) -> SimpleNamespace:
    generator = AnchorGenerator(
        strides=STRIDES,
        ratios=ratios,
        octave_base_scale=scales,
        scales_per_octave=1,
    )
    return SimpleNamespace(prior_generator=generator, train_cfg={})


def metas(*shapes: tuple[int, int]) -> list[dict]:
    return [{'pad_shape': shape, 'img_shape': shape} for shape in shapes]


@pytest.mark.parametrize('ratios', [[1.0], [0.5, 1.0, 2.0]])
@pytest.mark.parametrize('shapes', [((96, 128),), ((96, 128), (70, 50))])
def test_grid_is_mmdets(shapes, ratios) -> None:
    head = head_with(4, ratios)
    cpu = torch.device('cpu')
    grid = anchor_grid(head, SIZES, metas(*shapes), cpu)
    levels = head.prior_generator.grid_priors(SIZES, device='cpu')
    assert torch.equal(grid.anchors, torch.cat(levels))
    assert grid.counts == [len(level) for level in levels]
    for i, shape in enumerate(shapes):
        flags = head.prior_generator.valid_flags(SIZES, shape, 'cpu')
        mask = grid.image_mask(i)
        if mask is None:
            mask = torch.ones(len(grid.anchors), dtype=torch.bool)
        assert torch.equal(mask, torch.cat(flags))
    assert (grid.inside is None) == (len(shapes) == 1)


THRESHOLDS = {
    'rpn': dict(pos_iou_thr=0.7, neg_iou_thr=0.3, min_pos_iou=0.3),
    'rcnn': dict(
        pos_iou_thr=0.5,
        neg_iou_thr=0.5,
        min_pos_iou=0.5,
        match_low_quality=False,
    ),
    'range': dict(pos_iou_thr=0.4, neg_iou_thr=(0.1, 0.3), min_pos_iou=0.0),
}


def expected_of(assigner, boxes, usable, gts, *args):
    """What mmdet assigns to those that are usable."""
    results = torch.full((len(boxes),), IGNORED)
    result = assigner.assign(
        InstanceData(priors=boxes[usable]),
        *args,
        InstanceData(bboxes=gts, labels=torch.zeros(len(gts)).long()),
    )
    # mmdet: 0 is background, -1 neither.
    results[usable] = torch.where(
        result.gt_inds > 0,
        result.gt_inds - 1,
        torch.where(result.gt_inds == 0, NEGATIVE, IGNORED),
    )
    return results


@pytest.mark.parametrize('name', THRESHOLDS)
@pytest.mark.parametrize('number', [0, 1, 7])
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('ties', [False, True])
def test_max_iou_is_mmdets(name, number, masked, ties) -> None:
    assigner = MaxIoUAssigner(**THRESHOLDS[name])
    boxes, gts = boxes_of(300, 1, ties), boxes_of(number, 2, ties)
    usable = torch.ones(300, dtype=torch.bool)
    if masked:
        usable = torch.arange(300) % 3 > 0
    assigned = assign_max_iou(assigner, boxes, usable if masked else None, gts)
    expected = expected_of(assigner, boxes, usable, gts)
    assert torch.equal(assigned, expected)
    if number == 7:
        assert {int(x) >= 0 for x in assigned} == {True, False}


@pytest.mark.parametrize('number', [0, 1, 9])
@pytest.mark.parametrize('shape', [(96, 128), (40, 33)])
@pytest.mark.parametrize('topk', [3, 9])
def test_atss_is_mmdets(number, shape, topk) -> None:
    """Also where a level has fewer anchors inside than are looked for."""
    head = head_with(8, [1.0])
    assigner = ATSSAssigner(topk=topk)
    grid = anchor_grid(
        head, SIZES, metas((96, 128), shape), torch.device('cpu')
    )
    inside = grid.image_mask(1)
    gts = boxes_of(number, 3)
    assigned = assign_atss(assigner, grid, inside, gts)
    usable = (
        torch.ones(len(grid.anchors), dtype=torch.bool)
        if inside is None
        else inside
    )
    counts = [int(flags.sum()) for flags in usable.split(grid.counts)]
    expected = expected_of(assigner, grid.anchors, usable, gts, counts)
    assert torch.equal(assigned, expected)


def result_of(assigned: torch.Tensor) -> AssignResult:
    gt_inds = torch.where(
        assigned >= 0,
        assigned + 1,
        torch.where(assigned == NEGATIVE, 0, -1),
    )
    return AssignResult(9, gt_inds, None, labels=gt_inds.clone())


SAMPLERS = {
    'rpn': dict(num=64, pos_fraction=0.5),
    'rcnn': dict(num=64, pos_fraction=0.25, neg_pos_ub=2),
    'many': dict(num=500, pos_fraction=0.5),
    'all': dict(num=500, pos_fraction=1.0, neg_pos_ub=-1),
}


@pytest.mark.parametrize('name', SAMPLERS)
@pytest.mark.parametrize('kind', ['mixed', 'negatives', 'positives', 'none'])
def test_without_randomness_samples_are_mmdets(name, kind) -> None:
    generator = torch.Generator().manual_seed(0)
    low, high = {
        'mixed': (IGNORED, 3),
        'negatives': (NEGATIVE, 0),
        'positives': (0, 4),
        'none': (IGNORED, NEGATIVE),
    }[kind]
    assigned = torch.randint(low, high, (200,), generator=generator)
    sampler = RandomSampler(add_gt_as_proposals=False, **SAMPLERS[name])
    boxes, gts = boxes_of(200), boxes_of(9, 1)
    with mock.patch('torch.randperm', torch.arange):
        drawn = draw_samples(assigned, sampler)
        expected = sampler.sample(
            result_of(assigned),
            InstanceData(priors=boxes),
            InstanceData(bboxes=gts, labels=torch.arange(9)),
        )
    positive, negative = drawn.positive, drawn.drawn & ~drawn.positive
    assert torch.equal(drawn.index[positive], expected.pos_inds)
    assert torch.equal(drawn.index[negative], expected.neg_inds)
    assert int(drawn.drawn.sum()) <= sampler.num


def test_samples_are_random() -> None:
    assigned = torch.tensor([0, 1] * 20 + [NEGATIVE] * 40)
    sampler = RandomSampler(num=8, pos_fraction=0.5)
    drawn = [draw_samples(assigned, sampler) for _ in range(300)]
    counts = torch.zeros(80)
    for picture in drawn:
        assert len(set(picture.index[picture.drawn].tolist())) == 8
        counts[picture.index[picture.drawn]] += 1
    # 4 of 40 in 300 draws: 30 on average, with a deviation of 5.2.
    assert counts.min() > 8
    assert counts.max() < 60


@pytest.mark.parametrize('clip', [True, False])
def test_box_arithmetic_is_the_coders(clip) -> None:
    coder = DeltaXYWHBBoxCoder(
        target_means=(0.1, 0.0, -0.2, 0.0),
        target_stds=(0.1, 0.2, 0.3, 0.4),
        clip_border=clip,
    )
    boxes, targets = boxes_of(50), boxes_of(50, 1)
    deltas = encode_boxes(coder, boxes, targets)
    torch.testing.assert_close(deltas, coder.encode(boxes, targets))
    wild = (deltas * 30).requires_grad_()
    size = torch.tensor([90.0, 70.0, 90.0, 70.0])
    results = decode_boxes(coder, boxes, wild, size)
    expected = coder.decode(boxes, wild, max_shape=(70, 90))
    torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-3)
    grads = [
        torch.autograd.grad(value.square().sum(), wild)[0]
        for value in (results, expected)
    ]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-2)


def test_what_is_left_to_mmdet() -> None:
    def plain(assigner, sampler, **train_cfg):
        head = SimpleNamespace(train_cfg=train_cfg)
        return assigns_plainly(head, assigner, sampler)

    thresholds, sampler = THRESHOLDS['rpn'], RandomSampler(8, 0.5)
    pseudo = PseudoSampler()
    assert plain(MaxIoUAssigner(**thresholds), sampler, allowed_border=-1)
    assert plain(MaxIoUAssigner(**thresholds), sampler)
    assert plain(ATSSAssigner(9), pseudo, allowed_border=-1)
    for setting in (
        {'ignore_iof_thr': 0.5},
        {'gt_max_assign_all': False},
        {'gpu_assign_thr': 100},
        {'iou_calculator': {'type': 'mmdet.BboxOverlaps2D', 'scale': 2.0}},
    ):
        assert not plain(MaxIoUAssigner(**thresholds, **setting), sampler)
    assert not plain(MaxIoUAssigner(**thresholds), sampler, allowed_border=0)
    assert not plain(MaxIoUAssigner(**thresholds), pseudo)
    assert not plain(ATSSAssigner(9, alpha=0.8), pseudo)
    assert not plain(ATSSAssigner(9), sampler)
