"""Panoptic samples: segments, masks and map of a drawn scene."""

import numpy as np
import pytest
from mmdet.structures.mask import BitmapMasks

from mmext.datasets.transforms._panoptic import panoptic_problems
from mmext.datasets.transforms.label_problem import LabelSpec

# Classes 0 and 1 are things, 2 and 3 stuff.
SPEC = LabelSpec(num_classes=2, num_seg_classes=4)


@pytest.fixture
def results():
    masks = np.zeros((2, 20, 30), np.uint8)
    masks[0, 2:8, 3:9] = 1
    masks[1, 10:20, 15:30] = 1
    label_map = np.full((20, 30), 2)
    label_map[:, :3] = 3
    for mask, label in zip(masks, (1, 0)):
        label_map[mask == 1] = label
    return {
        'gt_masks': BitmapMasks(masks, 20, 30),
        'gt_seg_map': label_map,
        'gt_bboxes_labels': np.array([1, 0]),
        'segments_info': [
            {'id': 10 + i, 'category': category, 'is_thing': category < 2}
            for i, category in enumerate((1, 2, 0, 3))
        ],
    }


def found(results, spec=SPEC):
    return list(panoptic_problems(results, spec))


def test_clean_scene(results):
    assert found(results) == []


def test_labels_in_another_order(results):
    results['gt_bboxes_labels'] = np.array([0, 1])
    (problem,) = found(results)
    assert (problem.check, problem.count) == ('panoptic', 2)
    assert (
        'first is mask 0 with label 0: 0 % of its pixels have it, at least '
        '95 % must, most are 1' in problem.message
    )


def test_part_of_a_mask_has_another_class(results):
    results['gt_seg_map'][2:5, 3:9] = 255
    (problem,) = found(results)
    assert '50 % of its pixels' in problem.message
    assert found(results, LabelSpec(2, 4, panoptic_agreement=0.5)) == []


def test_overlap(results):
    results['gt_masks'].masks[0, 12, 20] = 1
    overlap, *_ = found(results)
    assert overlap.message.startswith('1 pixels belong to more than one')
    assert '(y=12, x=20)' in overlap.message


@pytest.mark.parametrize('category', [-1, 4])
def test_class_of_a_segment(results, category):
    results['segments_info'][3]['category'] = category
    (problem,) = found(results)
    assert (
        f'must be in [0, 3]; first is {category} of segment 13'
        in problem.message
    )


def test_ids_that_occur_twice(results):
    results['segments_info'][1]['id'] = 10
    (problem,) = found(results)
    assert 'more than one of [10]' in problem.message


def test_not_panoptic(results):
    del results['segments_info']
    results['gt_bboxes_labels'] = np.array([0, 1])
    assert found(results) == []


def test_without_masks_or_map(results):
    results['gt_masks'] = BitmapMasks(np.zeros((0, 20, 30)), 20, 30)
    assert found(results) == []
    del results['gt_masks'], results['gt_seg_map']
    assert found(results) == []
