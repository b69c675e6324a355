"""Label maps, against sets and plain loops."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mmext.datasets.transforms._label_checks import (
    out_of_range,
    seg_map_keys,
    seg_map_problems,
)
from mmext.datasets.transforms.label_problem import SampleSpec

SPEC = SampleSpec(num_classes=0, num_seg_classes=19)
DTYPES = (np.uint8, np.int8, np.uint16, np.int32, np.int64)


def sample(label_map, /, **others):
    return {
        'gt_seg_map': label_map,
        'img': np.zeros((*label_map.shape[:2], 3), np.uint8),
        'seg_map_path': 'a.png',
        **others,
    }


def problems(label_map, spec=SPEC, /, **others):
    return list(seg_map_problems(sample(label_map, **others), spec))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(
            dtype, hnp.array_shapes(min_dims=2, max_dims=2)
        )
    ),
    st.sampled_from([1, 2, 11, 19, 127, 254, 255, 256, 300]),
    st.sampled_from([None, 0, 11, 19, 127, 254, 255, 256, -1, -100]),
    st.sampled_from([(1, 1), (-1, 1), (1, -1), (-1, -2)]),
)
def test_matches_sets(label_map, num_classes, ignore_index, steps):
    """Each dtype, a value to ignore inside and outside of it, flips."""
    label_map = label_map[:: steps[0], :: steps[1]]
    good = {*range(num_classes), ignore_index}
    expected = [[v not in good for v in row] for row in label_map.tolist()]
    bad = out_of_range(label_map, num_classes, ignore_index)
    assert bad.tolist() == expected


def test_message_has_values_counts_place_range_and_cause(rng):
    label_map = rng.integers(0, 19, (30, 40)).astype(np.uint8)
    label_map[7, 5:15] = 33
    label_map[20, 0:2] = 26
    (problem,) = problems(label_map)
    assert (problem.rule, problem.field) == ('SEG001', 'gt_seg_map')
    assert problem.count == 12
    assert problem.message == (
        '12 of 1,200 pixels are out of range, labels must be in [0, 18] '
        '(num_classes=19, ignore_index=255); values: 33 (10), 26 (2); first '
        '33 at (y=7, x=5)'
    )
    assert 'labelTrainIds' in problem.remedy


def test_many_values_are_cut_with_their_number():
    label_map = np.arange(20, 60, dtype=np.uint8).reshape(4, 10)
    (problem,) = problems(label_map)
    assert 'and 28 more values' in problem.message


def test_says_what_the_loader_did():
    label_map = np.full((4, 4), 254, np.uint8)
    (problem,) = problems(label_map, reduce_zero_label=True, label_map={0: 1})
    assert 'read with reduce_zero_label=True and label_map={0: 1}' in (
        problem.message
    )
    assert 'reduce_zero_label=True has turned' in problem.remedy


@pytest.mark.parametrize(
    ('label_map', 'match'),
    [
        (np.zeros((4, 5), np.float32), 'got dtype float32'),
        (np.zeros((4, 5), bool), 'got dtype bool'),
        (torch.zeros(4, 5), 'got Tensor'),
        (np.zeros((4, 5, 3), np.uint8), r'got shape \(4, 5, 3\)'),
        (np.zeros((5,), np.uint8), r'got shape \(5,\)'),
    ],
)
def test_form(label_map, match):
    image = np.zeros((4, 5, 3), np.uint8)
    (problem,) = problems(label_map, img=image)
    assert re.search(match, problem.message)
    assert problem.rule != 'SEG001'
    if label_map.ndim == 3:
        assert 'RGB colours' in problem.remedy
        assert problem.rule == 'SEG010'


def test_size_differs_from_the_image():
    (problem,) = problems(
        np.zeros((4, 5), np.uint8), img=np.zeros((5, 4, 3), np.uint8)
    )
    assert problem.rule == 'PAIR001'
    assert '(4, 5) and (5, 4)' in problem.message
    assert (
        list(seg_map_problems({'gt_seg_map': np.zeros((4, 5), int)}, SPEC))
        == []
    )


def test_edges_and_depth_are_no_classes():
    results = {
        'gt_seg_map': np.zeros((2, 2), int),
        'gt_seg_map_to': np.full((2, 2), 40),
        'gt_edge_map': np.full((2, 2), 77),
        'gt_depth_map': np.full((2, 2), 0.5),
        'seg_fields': ['gt_seg_map', 'gt_edge_map', 'gt_depth_map'],
    }
    assert seg_map_keys(results) == ['gt_seg_map', 'gt_seg_map_to']
    (problem,) = seg_map_problems(results, SPEC)
    assert problem.field == 'gt_seg_map_to'
