"""Errors name files, and survive the ways errors travel."""

import pickle

import numpy as np
import pytest
import torch
from mmdet.structures.bbox import HorizontalBoxes

from mmext.datasets.transforms import LabelError, LabelProblem
from mmext.datasets.transforms.label_problem import (
    as_array,
    describe,
    file_of,
    image_size,
)

MAP = LabelProblem('range', 'gt_seg_map', 'three are wrong.', 'save anew', 3)
BOX = LabelProblem('box', 'gt_bboxes', 'one is wrong', 'draw anew')


def test_error_is_a_value_error_and_pickles():
    error = LabelError('text', [MAP, BOX])
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == ('text', (MAP, BOX))
    # As PyTorch makes it anew from the text of a worker's.
    assert LabelError(msg := 'from a worker').args == (msg,)


def test_only_pixels_out_of_range_are_repairable():
    assert MAP.is_repairable
    assert not BOX.is_repairable
    assert not LabelProblem('range', 'gt_bboxes_labels', '', '').is_repairable
    assert not LabelProblem('dtype', 'gt_seg_map', '', '').is_repairable


@pytest.mark.parametrize(
    ('field', 'expected'),
    [
        ('gt_seg_map', 'a.png'),
        ('gt_seg_map_from', 'from.png'),
        ('gt_bboxes', 'a.jpg'),
        ('', 'a.jpg'),
    ],
)
def test_file_is_that_of_the_field(field, expected):
    results = {
        'img_path': 'a.jpg',
        'seg_map_path': 'a.png',
        'seg_map_from_path': 'from.png',
    }
    assert file_of(results, field) == expected


def test_file_falls_back():
    assert file_of({'img_path': 'a.jpg'}, 'gt_seg_map') == 'a.jpg'
    assert file_of({'seg_map_path': 'a.png'}) == 'a.png'
    assert file_of({'img_path': None}) == 'a sample without img_path'


def test_image_size():
    image = np.zeros((3, 5, 3))
    assert image_size({'img': image, 'img_shape': (7, 7)}) == (3, 5)
    assert image_size({'img_shape': (4, 6)}) == (4, 6)
    assert image_size({}) is None


@pytest.mark.parametrize('kind', [np.array, torch.tensor, HorizontalBoxes])
def test_as_array(kind):
    values = kind([[1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(as_array(values), [[1, 2, 3, 4]])


def test_describe_names_each_file_once():
    results = {'img_path': 'a.jpg', 'seg_map_path': 'a.png'}
    lines = describe(results, [MAP, MAP]).splitlines()
    assert lines[0] == '2 label problems in a.png (image a.jpg)'
    assert lines[1:3] == ['  gt_seg_map: three are wrong.', '    save anew']
    assert describe(results, [BOX]).startswith('1 label problem in a.jpg\n')
    both = describe(results, [MAP, BOX]).splitlines()[0]
    assert both == '2 label problems in a.png, a.jpg'
