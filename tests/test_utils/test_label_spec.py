"""The likely cause, for the mistakes that users make."""

import pytest

from mmext.utils.label_spec import likely_cause

MAP = (2, 8, 8)
CASES = {
    'cityscapes': (19, 255, {33: 9, 20: 1}, range(19), 'labelTrainIds'),
    'cityscapes plate': (19, 255, {-1: 9}, range(19), 'labelTrainIds'),
    'black and white': (2, None, {255: 9}, (0,), 'map 255 to 1'),
    'one class': (1, -100, {255: 9}, (0,), 'map 255 to 1'),
    'void is 255': (19, 11, {255: 9}, range(11), 'ignore_index=255'),
    'void is -1': (5, 255, {-1: 9}, range(5), 'ignore_index=-1'),
    'void is C': (11, 255, {11: 9}, range(11), 'seg_pad_val=11'),
    'from 1': (5, 255, {5: 9}, (1, 2, 3, 4), 'reduce_zero_label=True'),
    'ADE20K': (150, 255, {150: 9}, range(150), 'reduce_zero_label=True of'),
    '0 is none': (7, 255, {7: 9}, range(7), 'set reduce_zero_label=True'),
    'reduced': (150, 255, {254: 9}, range(150), 'has turned the 255'),
    'grey levels': (5, 255, {64: 1, 128: 2, 192: 1}, (0,), 'grey levels'),
    'others': (5, 255, {7: 1, 6: 1}, range(5), 'num_classes=5'),
}


@pytest.mark.parametrize('name', CASES)
def test_names_the_remedy(name):
    num_classes, ignore, bad, inside, remedy = CASES[name]
    assert remedy in likely_cause(num_classes, ignore, bad, inside, MAP)


def test_several_channels():
    text = likely_cause(5, 255, {9: 1}, (0,), (1, 8, 8, 3))
    assert 'several channels' in text


def test_one_odd_label_of_cityscapes_size_is_no_labelid():
    """19 alone is one more than the last class."""
    text = likely_cause(19, 255, {19: 4}, range(19), MAP)
    assert 'num_classes=20' in text
