"""Label maps, against sets and plain loops."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mmext.datasets.transforms._seg_maps import (
    in_range,
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


def allowed(num_classes, ignore_index):
    return {*range(num_classes), ignore_index}


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
    good = allowed(num_classes, ignore_index)
    expected = [[v not in good for v in row] for row in label_map.tolist()]
    bad = out_of_range(label_map, num_classes, ignore_index)
    assert bad.tolist() == expected
    assert in_range(label_map, num_classes, ignore_index) is not bool(
        np.any(expected)
    )


@pytest.mark.parametrize('num_classes', [1, 7, 254, 255, 256])
@pytest.mark.parametrize('ignore_index', [None, 0, 7, 254, 255])
def test_every_byte(num_classes, ignore_index):
    good = allowed(num_classes, ignore_index)
    for value, other in itertools.product(range(256), (0, 255)):
        label_map = np.array([[value, other]], np.uint8)
        assert in_range(label_map, num_classes, ignore_index) == (
            {value, other} <= good
        )


def test_empty_map_is_in_range():
    assert in_range(np.zeros((0, 4), np.uint8), 1, None)


def test_clean_map_has_no_problem(rng):
    label_map = rng.integers(0, 19, (30, 40)).astype(np.uint8)
    label_map[3, 4] = 255
    assert problems(label_map) == []


def test_message_has_values_counts_place_range_and_cause(rng):
    label_map = rng.integers(0, 19, (30, 40)).astype(np.uint8)
    label_map[7, 5:15] = 33
    label_map[20, 0:2] = 26
    (found,) = problems(label_map)
    assert (found.check, found.field, found.count) == (
        'range',
        'gt_seg_map',
        12,
    )
    assert found.message == (
        '12 of 1,200 pixels are out of range, labels must be in [0, 18] '
        '(num_classes=19, ignore_index=255); values: 33 (10), 26 (2); first '
        '33 at (y=7, x=5)'
    )
    assert 'labelTrainIds' in found.remedy
    assert found.is_repairable


def test_many_values_are_cut_with_their_number():
    label_map = np.arange(20, 60, dtype=np.uint8).reshape(4, 10)
    (found,) = problems(label_map)
    assert 'and 28 more values' in found.message


def test_says_what_the_loader_did():
    label_map = np.full((4, 4), 254, np.uint8)
    (found,) = problems(label_map, reduce_zero_label=True, label_map={0: 1})
    assert 'read with reduce_zero_label=True and label_map={0: 1}' in (
        found.message
    )
    assert 'reduce_zero_label=True has turned' in found.remedy


@pytest.mark.parametrize(
    ('label_map', 'check', 'match'),
    [
        (np.zeros((4, 5), np.float32), 'dtype', 'got dtype float32'),
        (np.zeros((4, 5), bool), 'dtype', 'got dtype bool'),
        (np.zeros((4, 5, 3), np.uint8), 'shape', r'got shape \(4, 5, 3\)'),
        (np.zeros((5,), np.uint8), 'shape', r'got shape \(5,\)'),
    ],
)
def test_form(label_map, check, match):
    image = np.zeros((4, 5, 3), np.uint8)
    (found,) = problems(label_map, img=image)
    assert found.check == check
    assert re.search(match, found.message)
    assert not found.is_repairable
    if label_map.ndim == 3:
        assert 'RGB colours' in found.remedy
        assert found.rule == 'SEG010'


def test_tensor_is_refused():
    import torch

    results = {'gt_seg_map': torch.zeros(4, 4)}
    (found,) = seg_map_problems(results, SPEC)
    assert found.check == 'dtype'
    assert 'got Tensor' in found.message


def test_size_differs_from_the_image():
    (found,) = problems(
        np.zeros((4, 5), np.uint8), img=np.zeros((5, 4, 3), np.uint8)
    )
    assert (found.check, found.rule) == ('shape', 'PAIR001')
    assert '(4, 5) and (5, 4)' in found.message
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
    (found,) = seg_map_problems(results, SPEC)
    assert found.field == 'gt_seg_map_to'


def test_does_not_change_the_map(rng):
    label_map = rng.integers(0, 256, (30, 40)).astype(np.uint8)
    before = label_map.copy()
    assert problems(label_map)
    np.testing.assert_array_equal(label_map, before)
