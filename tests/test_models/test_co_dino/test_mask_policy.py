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


def test_canvas_sets_img_shape_alone():
    samples = [make_sample(shape) for shape in SHAPES]
    for given, result in zip(samples, apply_mask_policy(samples, 'canvas')):
        assert result.img_shape == CANVAS
        expected = {**given.metainfo, 'img_shape': CANVAS}
        assert result.metainfo == expected
        assert result.gt_instances is given.gt_instances
        assert result.ignored_instances is given.ignored_instances
        assert set(result.keys()) == set(given.keys())


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


def test_rejects_samples_without_a_canvas():
    sample = DetDataSample(metainfo={'img_shape': (4, 4), 'img_id': 1})
    with pytest.raises(
        ValueError,
        match=r"must carry 'batch_input_shape' .*got metainfo keys "
        r"\['img_id', 'img_shape'\]; use DetDataPreprocessor",
    ):
        apply_mask_policy([sample], 'canvas')


@pytest.mark.parametrize('policy', ['Valid', '', None, True])
def test_rejects_unknown_policies(policy):
    with pytest.raises(
        ValueError, match=r"mask_policy must be one of \('valid', 'canvas'\)"
    ):
        check_mask_policy(policy)
