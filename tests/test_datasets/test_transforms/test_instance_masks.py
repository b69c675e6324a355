"""Masks of instances, with mmdet's own boxes around them as the oracle."""

import numpy as np
import pytest
import torch
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks, PolygonMasks

from mmext.datasets.transforms._instance_masks import (
    boxes_around,
    mask_problems,
)
from mmext.datasets.transforms.label_problem import LabelSpec

SPEC = LabelSpec(num_classes=3, num_seg_classes=3)
SIZE = (30, 40)
BOXES = [[2, 3, 12, 9], [20, 10, 40, 30]]


def bitmaps(boxes=BOXES, value=1):
    masks = np.zeros((len(boxes), *SIZE), np.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes):
        mask[y1:y2, x1:x2] = value
    return BitmapMasks(masks, *SIZE)


def polygons(boxes=BOXES):
    corners = [
        [np.array([x1, y1, x2, y1, x2, y2, x1, y2], np.float64)]
        for x1, y1, x2, y2 in boxes
    ]
    return PolygonMasks(corners, *SIZE)


def found(masks, boxes=BOXES, spec=SPEC, **others):
    results = {
        'img_shape': SIZE,
        'gt_masks': masks,
        'gt_bboxes': HorizontalBoxes(torch.tensor(boxes).float()),
        **others,
    }
    return list(mask_problems(results, spec))


@pytest.mark.parametrize('kind', [bitmaps, polygons])
def test_boxes_around_match_the_boxes_they_were_drawn_from(kind):
    np.testing.assert_array_equal(boxes_around(kind()), BOXES)


def test_boxes_around_match_mmdet(rng):
    masks = (rng.random((6, *SIZE)) > 0.995).astype(np.uint8)
    masks[0] = 0
    masks = BitmapMasks(masks, *SIZE)
    ours, theirs = boxes_around(masks), masks.get_bboxes('hbox').tensor.numpy()
    np.testing.assert_array_equal(ours[1:], theirs[1:])
    assert np.isnan(ours[0]).all()
    assert boxes_around(BitmapMasks(np.zeros((0, *SIZE)), *SIZE)).shape == (
        0,
        4,
    )


def test_polygons_in_several_parts():
    parts = [np.array([5, 6, 9, 6, 9, 8.5]), np.array([1, 2, 3, 2, 3, 4])]
    masks = PolygonMasks([parts], *SIZE)
    assert boxes_around(masks).tolist() == [[1, 2, 9, 8.5]]


@pytest.mark.parametrize('kind', [bitmaps, polygons])
def test_agreement(kind):
    assert found(kind()) == []
    near = [[1, 3, 13, 9], [20, 11, 40, 30]]
    assert found(kind(), near, LabelSpec(3, 3, mask_box_iou=1)) == []
    (problem,) = found(kind(), [BOXES[0], [0, 0, 40, 30]])
    assert (problem.check, problem.count) == ('mask', 1)
    assert (
        'overlap must be at least 0.5; first is box 1, (0, 0, 40, 30), whose '
        'mask is in (20, 10, 40, 30)' in problem.message
    )


@pytest.mark.parametrize('kind', [bitmaps, polygons])
def test_another_order_disagrees(kind):
    (problem,) = found(kind(BOXES[::-1]))
    assert problem.count == 2
    assert 'same order' in problem.remedy


def test_ignored_instances_are_left_out():
    flags = np.array([False, True])
    assert (
        found(bitmaps(), [BOXES[0], [0, 0, 1, 1]], gt_ignore_flags=flags) == []
    )
    masks = bitmaps()
    masks.masks[1] = 0
    assert found(masks, gt_ignore_flags=flags) == []
    (problem,) = found(masks)
    assert '1 of 2 masks are empty; first is that of box 1' in problem.message


def test_overlap_of_zero_checks_for_empty_masks_only():
    loose = LabelSpec(3, 3, mask_box_iou=0)
    assert found(bitmaps(), BOXES[::-1], loose) == []
    assert found(bitmaps([[0, 0, 0, 0], BOXES[1]]), spec=loose)


def test_size_and_values():
    (problem,) = found(bitmaps(), img_shape=(30, 41))
    assert problem.check == 'shape'
    assert '(30, 40) and (30, 41)' in problem.message
    (problem,) = found(bitmaps(value=255))
    assert problem.message == 'bitmaps must hold 0 and 1, got 255'
    assert problem.count == 2


def test_boxes_that_are_not_finite_are_not_compared():
    nan = float('nan')
    assert found(bitmaps(), [BOXES[0], [nan, 0, 40, 30]]) == []


def test_no_masks():
    assert list(mask_problems({'gt_bboxes': np.zeros((1, 4))}, SPEC)) == []
