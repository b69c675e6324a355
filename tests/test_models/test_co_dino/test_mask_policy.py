"""What counts as image, and the padding masks that follow from it."""

import copy
import math

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

from mmext.models.co_dino.mask_policy import (
    MASK_POLICIES,
    apply_mask_policy,
    check_mask_policy,
    level_padding_masks,
)

CANVAS = (64, 96)
SHAPES = [(64, 96), (50, 33), (1, 96), (64, 1)]
LEVELS = [(16, 24), (8, 12), (4, 6), (3, 5), (1, 1)]


def make_sample(shape: tuple[int, ...], **metainfo) -> DetDataSample:
    sample = DetDataSample(
        metainfo={
            'img_shape': shape,
            'batch_input_shape': CANVAS,
            'scale_factor': (2.0, 2.0),
            'img_id': 3,
            **metainfo,
        }
    )
    sample.gt_instances = InstanceData(
        bboxes=torch.rand(2, 4), labels=torch.tensor([1, 0])
    )
    sample.ignored_instances = InstanceData(bboxes=torch.rand(0, 4))
    return sample


def metas_of(shapes: list[tuple[int, ...]]) -> list[dict]:
    return [make_sample(shape).metainfo for shape in shapes]


def feats_of(levels: list[tuple[int, int]], batch: int) -> list[torch.Tensor]:
    return [torch.zeros(batch, 3, *level) for level in levels]


def test_masks_match_nearest_interpolation():
    """A pixel of a level stands for the pixel at its top left corner."""
    masks, has_padding = level_padding_masks(
        metas_of(SHAPES), feats_of(LEVELS, len(SHAPES))
    )
    assert has_padding
    for mask, (rows, columns) in zip(masks, LEVELS):
        assert mask.dtype == torch.bool
        assert mask.shape == (len(SHAPES), rows, columns)
        for image, (height, width) in enumerate(SHAPES):
            for row in range(rows):
                for column in range(columns):
                    y = math.floor(row * CANVAS[0] / rows)
                    x = math.floor(column * CANVAS[1] / columns)
                    padding = y >= height or x >= width
                    assert bool(mask[image, row, column]) == padding


def test_limit_full_images_have_no_padding():
    masks, has_padding = level_padding_masks(
        metas_of([CANVAS, CANVAS]), feats_of(LEVELS, 2)
    )
    assert not has_padding
    assert not any(mask.any() for mask in masks)


def test_first_pixel_is_never_padding():
    """So that no valid ratio is ever zero, which would divide by zero."""
    masks, _ = level_padding_masks(metas_of([(1, 1)]), feats_of(LEVELS, 1))
    assert not any(mask[0, 0, 0] for mask in masks)


def test_a_shape_with_channels_or_as_a_list_will_do():
    for shape in ((64, 96, 3), [64, 96]):
        metas = metas_of([shape])
        metas[0]['batch_input_shape'] = list(CANVAS)
        masks, has_padding = level_padding_masks(metas, feats_of(LEVELS, 1))
        assert not has_padding
        assert not masks[0].any()


def test_masks_on_every_device(device: torch.device):
    feats = [feat.to(device) for feat in feats_of(LEVELS, 1)]
    masks, _ = level_padding_masks(metas_of([(9, 9)]), feats)
    assert all(mask.device.type == device.type for mask in masks)


def test_half_precision_feats():
    feats = [feat.half() for feat in feats_of(LEVELS, 1)]
    masks, _ = level_padding_masks(metas_of([(50, 33)]), feats)
    expected, _ = level_padding_masks(
        metas_of([(50, 33)]), feats_of(LEVELS, 1)
    )
    for ours, theirs in zip(masks, expected):
        assert torch.equal(ours, theirs)


def test_valid_returns_the_samples():
    samples = [make_sample(shape) for shape in SHAPES]
    result = apply_mask_policy(samples, 'valid')
    assert result is not samples
    assert all(ours is theirs for ours, theirs in zip(result, samples))


def test_canvas_sets_img_shape_alone():
    samples = [make_sample(shape) for shape in SHAPES]
    for given, result in zip(samples, apply_mask_policy(samples, 'canvas')):
        assert result.img_shape == CANVAS
        expected = {**given.metainfo, 'img_shape': CANVAS}
        assert result.metainfo == expected
        assert result.gt_instances is given.gt_instances
        assert result.ignored_instances is given.ignored_instances
        assert set(result.keys()) == set(given.keys())


def test_canvas_means_no_padding():
    samples = [make_sample(shape) for shape in SHAPES]
    metas = [s.metainfo for s in apply_mask_policy(samples, 'canvas')]
    _, has_padding = level_padding_masks(metas, feats_of(LEVELS, len(SHAPES)))
    assert not has_padding


@pytest.mark.parametrize('policy', MASK_POLICIES)
def test_does_not_change_inputs(policy: str):
    """The samples are used again, by evaluation for instance."""
    samples = [make_sample(shape) for shape in SHAPES]
    before = copy.deepcopy(samples)
    for result in apply_mask_policy(samples, policy):
        if policy == 'canvas':
            result.set_metainfo({'img_shape': (1, 1)})
            result.pred_instances = InstanceData(scores=torch.ones(1))
            del result.gt_instances
    for given, old in zip(samples, before):
        assert given.metainfo == old.metainfo
        assert set(given.keys()) == set(old.keys())
        for name in ('bboxes', 'labels'):
            assert torch.equal(
                given.gt_instances[name], old.gt_instances[name]
            )


def test_canvas_keeps_the_kind_of_sample():
    class OwnSample(DetDataSample):
        pass

    sample = OwnSample(metainfo=make_sample((5, 5)).metainfo)
    (result,) = apply_mask_policy([sample], 'canvas')
    assert type(result) is OwnSample


def test_rejects_samples_without_a_canvas():
    sample = DetDataSample(metainfo={'img_shape': (4, 4), 'img_id': 1})
    with pytest.raises(
        ValueError,
        match=r"must carry 'batch_input_shape' .*got metainfo keys "
        r"\['img_id', 'img_shape'\]; use DetDataPreprocessor",
    ):
        apply_mask_policy([sample], 'canvas')


@pytest.mark.parametrize('policy', MASK_POLICIES)
def test_knows_its_policies(policy: str):
    assert check_mask_policy(policy) == policy


@pytest.mark.parametrize('policy', ['Valid', '', None, True])
def test_rejects_unknown_policies(policy):
    with pytest.raises(
        ValueError, match=r"mask_policy must be one of \('valid', 'canvas'\)"
    ):
        check_mask_policy(policy)
