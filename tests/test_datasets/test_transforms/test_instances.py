"""Boxes and labels: each mistake is found, and no other."""

import re
import warnings

import numpy as np
import pytest
import torch
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks, PolygonMasks

from mmext.datasets.transforms._label_checks import (
    box_problems,
    boxes_around,
    mask_problems,
    same_counts,
)
from mmext.datasets.transforms.label_problem import SampleSpec

SPEC = SampleSpec(num_classes=3, num_seg_classes=3)
NAN, INF = float('nan'), float('inf')
GOOD = [[0, 0, 40, 30], [1.5, 2, 3, 4.5]]


@pytest.fixture(params=['array', 'mmdet'], autouse=True)
def kind(request):
    """Boxes of both kinds of pipelines."""
    return request.param


def sample(kind, boxes, labels=None, **others):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    if kind == 'mmdet':
        boxes = HorizontalBoxes(torch.from_numpy(boxes))
    if labels is None:
        labels = np.zeros(len(boxes), np.int64)
    return {
        'img_shape': (30, 40),
        'gt_bboxes': boxes,
        'gt_bboxes_labels': np.asarray(labels),
        'gt_ignore_flags': np.zeros(len(boxes), bool),
        **others,
    }


def problems_of(kind, boxes, labels=None, spec=SPEC, **others):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        return list(box_problems(sample(kind, boxes, labels, **others), spec))


def test_good_boxes(kind):
    assert problems_of(kind, GOOD, [0, 2]) == []
    assert problems_of(kind, [], np.zeros(0)) == []
    # Within the tolerance of a pixel.
    assert problems_of(kind, [[-1, -0.5, 41, 31]]) == []


@pytest.mark.parametrize(
    ('box', 'rule', 'match'),
    [
        ([3, 2, 3, 8], 'DET002', 'degenerate, width and height must be over'),
        ([3, 9, 5, 8], 'DET002', 'degenerate'),
        ([NAN, 2, 3, 8], 'DET001', 'not finite'),
        ([0, -INF, INF, 8], 'DET001', 'not finite'),
        ([INF, 0, INF, 8], 'DET001', 'not finite'),
        ([40, 2, 41, 8], 'DET004', 'share no pixel with the image'),
        ([-1.1, 2, 3, 8], 'DET005', 'reach out of the image by more than 1 p'),
        ([1, 2, 41.5, 8], 'DET005', r'\(height, width\) is \(30, 40\)'),
        ([1, 2, 10, 31.5], 'DET005', 'reach out'),
    ],
)
def test_one_bad_box(kind, box, rule, match):
    (problem,) = problems_of(kind, [*GOOD, box])
    assert (problem.rule, problem.count) == (rule, 1)
    assert problem.message.startswith('1 of 3 boxes ')
    assert 'first is box 2, (' in problem.message
    assert re.search(match, problem.message)


def test_without_an_image_boxes_may_be_anywhere(kind):
    results = sample(kind, [[0, 0, 5000, 1]])
    del results['img_shape']
    assert list(box_problems(results, SPEC)) == []


def test_smallest_size_and_tolerance_are_settings(kind):
    strict = SampleSpec(
        num_classes=3, num_seg_classes=3, min_size=2, box_tolerance=0
    )
    (problem,) = problems_of(kind, GOOD, spec=strict)
    assert problem.rule == 'DET003'
    assert 'least 2; first is box 1, (1.5, 2, 3, 4.5)' in problem.message
    (problem,) = problems_of(kind, [[0, 0, 40.5, 30]], spec=strict)
    assert 'more than 0' in problem.message
    anywhere = SampleSpec(num_classes=3, num_seg_classes=3, box_tolerance=INF)
    assert problems_of(kind, [[70, 0, 90, 30]], spec=anywhere) == []


@pytest.mark.parametrize('label', [-1, 3, 255])
def test_label_out_of_range(kind, label):
    (problem,) = problems_of(kind, GOOD, [2, label])
    assert problem.field == 'gt_bboxes_labels'
    assert problem.rule == ('DET006' if label < 0 else 'DET007')
    assert problem.message == (
        '1 of 2 labels are out of range, they must be in [0, 2] '
        f'(num_classes=3); values: {label} (1); first {label} of box 1'
    )


@pytest.mark.parametrize('labels', [[0.0, 1.0], [[0], [1]], [True, False]])
def test_labels_that_are_no_list_of_integers(kind, labels):
    (problem,) = problems_of(kind, GOOD, labels)
    assert 'integers of shape (N,)' in problem.message


@pytest.mark.parametrize(
    'others',
    [
        {'gt_bboxes_labels': np.zeros(1, int)},
        {'gt_ignore_flags': np.zeros(3, bool)},
        {'gt_masks': BitmapMasks(np.zeros((1, 30, 40), np.uint8), 30, 40)},
    ],
)
def test_counts_differ(kind, others):
    results = sample(kind, GOOD) | others
    (problem,) = box_problems(results, SPEC)
    ((key, value),) = others.items()
    assert f'{len(value)} {key}' in problem.message
    assert not same_counts(results)


def test_array_of_another_shape_is_refused():
    results = {'gt_bboxes': np.zeros((2, 5), np.float32)}
    (problem,) = box_problems(results, SPEC)
    assert 'shape (N, 4), got (2, 5)' in problem.message


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


def mask_problems_of(masks, boxes=BOXES, spec=SPEC, **others):
    results = {
        'img_shape': SIZE,
        'gt_masks': masks,
        'gt_bboxes': HorizontalBoxes(torch.tensor(boxes).float()),
        **others,
    }
    return list(mask_problems(results, spec))


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
    assert mask_problems_of(kind()) == []
    near = [[1, 3, 14, 9], [20, 11, 40, 30]]
    assert mask_problems_of(kind(), near) == []
    # Twice as large, the same differences are of twice as many pixels.
    scaled = {'scale_factor': (2.0, 1.5)}
    far = [[6, 3, 12, 9], BOXES[1]]
    assert mask_problems_of(kind(), far, **scaled) == []
    (problem,) = mask_problems_of(kind(), far, scale_factor=(0.5, 0.5))
    (problem,) = mask_problems_of(kind(), [BOXES[0], [0, 0, 40, 30]])
    assert (problem.rule, problem.count) == ('DET008', 1)
    assert (
        'more than 2 pixels and with an overlap under 1; first is box 1, '
        '(0, 0, 40, 30), whose mask is in (20, 10, 40, 30)' in problem.message
    )
    half = SampleSpec(num_classes=3, num_seg_classes=3, mask_box_iou=0.5)
    loose = [BOXES[0], [14, 10, 40, 30]]
    assert mask_problems_of(kind(), loose)
    assert mask_problems_of(kind(), loose, half) == []


@pytest.mark.parametrize('kind', [bitmaps, polygons])
def test_another_order_disagrees(kind):
    (problem,) = mask_problems_of(kind(BOXES[::-1]))
    assert problem.count == 2
    assert 'same order' in problem.remedy


def test_ignored_instances_are_left_out():
    flags = np.array([False, True])
    assert (
        mask_problems_of(
            bitmaps(), [BOXES[0], [0, 0, 1, 1]], gt_ignore_flags=flags
        )
        == []
    )
    masks = bitmaps()
    masks.masks[1] = 0
    assert mask_problems_of(masks, gt_ignore_flags=flags) == []
    (problem,) = mask_problems_of(masks)
    assert '1 of 2 masks are empty; first is that of box 1' in problem.message


def test_overlap_of_zero_checks_for_empty_masks_only():
    loose = SampleSpec(num_classes=3, num_seg_classes=3, mask_box_iou=0)
    assert mask_problems_of(bitmaps(), BOXES[::-1], loose) == []
    assert mask_problems_of(bitmaps([[0, 0, 0, 0], BOXES[1]]), spec=loose)


def test_size_and_values():
    (problem,) = mask_problems_of(bitmaps(), img_shape=(30, 41))
    assert problem.rule == 'PAIR004'
    assert '(30, 40) and (30, 41)' in problem.message
    (problem,) = mask_problems_of(bitmaps(value=255))
    assert problem.message == 'bitmaps must hold 0 and 1, got 255'
    assert problem.count == 2


def test_boxes_that_are_not_finite_are_not_compared():
    nan = float('nan')
    assert mask_problems_of(bitmaps(), [BOXES[0], [nan, 0, 40, 30]]) == []
