"""ValidateLabels: its arguments, and samples made by hand."""

import pickle

import numpy as np
import pytest
from mmengine.registry import TRANSFORMS, DefaultScope

from mmext.datasets.transforms import LabelError, ValidateLabels


@pytest.mark.parametrize(
    ('kwargs', 'match'),
    [
        ({'action': 'skip'}, 'action must be one of'),
        ({'action': 'ignore_pixels', 'ignore_index': None}, 'got None'),
        ({'num_classes': 0}, 'num_classes must be in'),
        ({'num_seg_classes': -3}, 'num_seg_classes must be in'),
        ({'box_tolerance': -1}, 'box_tolerance must be in'),
        ({'min_size': -1}, 'min_size must be in'),
        ({'mask_box_iou': 1.5}, r'mask_box_iou must be in \[0, 1\], got 1.5'),
    ],
)
def test_rejects(kwargs, match):
    with pytest.raises(ValueError, match=match):
        ValidateLabels(**kwargs)


def test_rejects_a_place_where_there_is_nothing_to_check():
    check = ValidateLabels(num_classes=2)
    with pytest.raises(ValueError, match='must come after LoadAnnotations'):
        check({'img': np.zeros((2, 2, 3)), 'img_path': 'a.jpg'})
    with pytest.raises(ValueError, match=r"with \['data_samples', 'inputs'\]"):
        check({'inputs': 1, 'data_samples': 2})


def test_rejects_two_values_to_ignore():
    check = ValidateLabels(num_classes=2)
    results = {'gt_seg_map': np.zeros((2, 2), int), 'ignore_index': 254}
    with pytest.raises(ValueError, match='is 255, that of LoadAnnotations'):
        check(results)


def test_ignored_value_must_fit_the_dtype():
    check = ValidateLabels(2, ignore_index=-100, action='ignore_pixels')
    results = {'gt_seg_map': np.array([[0, 3]], np.uint8)}
    with pytest.raises(LabelError, match='-100, which uint8 does not hold'):
        check(results)
    label_map = np.array([[0, 3]], np.int16)
    changed = check({'gt_seg_map': label_map})['gt_seg_map']
    assert changed.tolist() == [[0, -100]]
    assert label_map.tolist() == [[0, 3]]


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmext'])
def test_builds_from_registry(scope):
    with DefaultScope.overwrite_default_scope(scope):
        check = TRANSFORMS.build(
            dict(type='mmext.ValidateLabels', num_classes=3)
        )
    assert isinstance(check, ValidateLabels)
    assert "action='raise'" in repr(check)
    again = pickle.loads(pickle.dumps(check))
    assert again.spec == check.spec
    assert again.journal.path == check.journal.path
