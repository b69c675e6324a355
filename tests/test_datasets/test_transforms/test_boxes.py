"""Boxes and labels: each mistake is found, and no other."""

import re
import warnings

import numpy as np
import pytest
import torch
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks

from mmext.datasets.transforms._boxes import box_problems, same_counts
from mmext.datasets.transforms.label_problem import LabelSpec

SPEC = LabelSpec(num_classes=3, num_seg_classes=3)
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


def found(kind, boxes, labels=None, spec=SPEC, **others):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        return list(box_problems(sample(kind, boxes, labels, **others), spec))


def test_good_boxes(kind):
    assert found(kind, GOOD, [0, 2]) == []
    assert found(kind, [], np.zeros(0)) == []
    # Within the tolerance of a pixel.
    assert found(kind, [[-1, -0.5, 41, 31]]) == []


@pytest.mark.parametrize(
    ('box', 'match'),
    [
        ([3, 2, 3, 8], 'degenerate, width and height must be over 0'),
        ([3, 9, 5, 8], 'degenerate'),
        ([NAN, 2, 3, 8], 'not finite'),
        ([0, -INF, INF, 8], 'not finite'),
        ([INF, 0, INF, 8], 'not finite'),
        ([-1.1, 2, 3, 8], r'reach out of the image by more than 1 pixel'),
        ([1, 2, 41.5, 8], r'\(height, width\) is \(30, 40\)'),
        ([1, 2, 10, 31.5], 'reach out'),
    ],
)
def test_one_bad_box(kind, box, match):
    (problem,) = found(kind, [*GOOD, box])
    assert (problem.check, problem.count) == ('box', 1)
    assert problem.message.startswith('1 of 3 boxes ')
    assert 'first is box 2, (' in problem.message
    assert re.search(match, problem.message)


def test_without_an_image_boxes_may_be_anywhere(kind):
    results = sample(kind, [[0, 0, 5000, 1]])
    del results['img_shape']
    assert list(box_problems(results, SPEC)) == []


def test_smallest_size_and_tolerance_are_settings(kind):
    strict = LabelSpec(3, 3, min_size=2, box_tolerance=0)
    (problem,) = found(kind, GOOD, spec=strict)
    assert 'over 2; first is box 1, (1.5, 2, 3, 4.5)' in problem.message
    (problem,) = found(kind, [[0, 0, 40.5, 30]], spec=strict)
    assert 'more than 0' in problem.message


@pytest.mark.parametrize('label', [-1, 3, 255])
def test_label_out_of_range(kind, label):
    (problem,) = found(kind, GOOD, [2, label])
    assert (problem.check, problem.field) == ('range', 'gt_bboxes_labels')
    assert problem.message == (
        '1 of 2 labels are out of range, they must be in [0, 2] '
        f'(num_classes=3); values: {label} (1); first {label} of box 1'
    )


@pytest.mark.parametrize('labels', [[0.0, 1.0], [[0], [1]], [True, False]])
def test_labels_that_are_no_list_of_integers(kind, labels):
    (problem,) = found(kind, GOOD, labels)
    assert problem.check == 'dtype'
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
    assert problem.check == 'count'
    ((key, value),) = others.items()
    assert f'{len(value)} {key}' in problem.message
    assert not same_counts(results)


def test_array_of_another_shape_is_refused():
    results = {'gt_bboxes': np.zeros((2, 5), np.float32)}
    (problem,) = box_problems(results, SPEC)
    assert 'shape (N, 4), got (2, 5)' in problem.message


def test_labels_alone_are_checked():
    (problem,) = box_problems({'gt_bboxes_labels': np.array([7])}, SPEC)
    assert 'first 7 of box 0' in problem.message
