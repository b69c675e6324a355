"""What counts as image, and the padding masks that follow from it."""

import math

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

from mmext.models.co_dino.mask_policy import (
    apply_mask_policy,
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
    """The samples are used again, by evaluation for instance."""
    samples = [make_sample(shape) for shape in SHAPES]
    assert apply_mask_policy(samples, 'valid') == samples
    for given, result in zip(samples, apply_mask_policy(samples, 'canvas')):
        before, keys = dict(given.metainfo), set(given.keys())
        assert result.metainfo == {**before, 'img_shape': CANVAS}
        assert result.gt_instances is given.gt_instances
        assert result.ignored_instances is given.ignored_instances
        assert set(result.keys()) == keys
        result.set_metainfo({'img_shape': (1, 1)})
        result.pred_instances = InstanceData(scores=torch.ones(1))
        del result.gt_instances
        assert given.metainfo == before
        assert set(given.keys()) == keys


def test_rejects_samples_without_a_canvas():
    sample = DetDataSample(metainfo={'img_shape': (4, 4), 'img_id': 1})
    with pytest.raises(
        ValueError,
        match=r"must carry 'batch_input_shape' .*got metainfo keys "
        r"\['img_id', 'img_shape'\]; use DetDataPreprocessor",
    ):
        apply_mask_policy([sample], 'canvas')
