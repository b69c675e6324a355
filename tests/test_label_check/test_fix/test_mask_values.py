"""Which values are void, and what is written in their place."""

import pytest

from mmext.label_check import Expectations
from mmext.label_check.fix._mask_values import plan_values
from mmext.label_check.fix.mask_fixes import MASK_RULES
from mmext.label_check.loaded import load_value, loaded_values


def plan(values, unseen=(), rules=MASK_RULES, **fields):
    expected = Expectations(**{'num_classes': 3, **fields})
    pairs = [(value, 5) for value in values]
    return plan_values(pairs, loaded_values(expected), rules, unseen)


@pytest.mark.parametrize(
    ('values', 'fields', 'new'),
    [
        ([0, 1, 255], {}, {}),
        ([0, 1, 65535], {}, {65535: 255}),
        ([-1, 0, 65535], {}, {-1: 255, 65535: 255}),
        ([-1, 0, 7], {}, {-1: 255}),
        ([0, 1, 255], {'ignore_index': 100}, {255: 100}),
        ([-1, 0, 1], {'ignore_index': 100}, {-1: 100}),
        ([0, 1, 7, 255], {'ignore_index': 100}, {}),
        ([0, 255], {'ignore_index': 100, 'num_classes': 2}, {}),
        ([0, 1, 255], {'ignore_index': 100, 'num_classes': 2}, {255: 100}),
        ([0, 1, 255], {'ignore_index': -100}, {}),
        ([0, 1, 255], {'ignore_index': 2}, {}),
        ([0, 1, 300], {}, {}),
        (
            [1, 2, 255],
            {'ignore_index': 100, 'reduce_zero_label': True},
            {255: 101},
        ),
        (
            [0, 1, 65535],
            {'label_map': ((0, 1), (1, 255)), 'num_classes': 2},
            {65535: 255},
        ),
    ],
)
def test_new_values(values, fields, new):
    made = plan(values, **fields)
    assert made.new == new
    assert made.rule.keys() == new.keys()
    expected = made.table.expected
    for value in new.values():
        assert load_value(value, expected) == expected.ignore_index


def test_classes_without_a_pixel():
    assert plan([0, 255], unseen=[1], ignore_index=9).new == {}
    # They cannot be classes of a mask of 8 bits.
    assert plan([0, 65535], unseen=[1], ignore_index=9).new == {65535: 9}


def test_rules_that_are_not_chosen():
    made = plan([0, -1, 300], rules=())
    assert (made.new, made.left) == ({}, [])
