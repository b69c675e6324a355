"""Expectations as data."""

import msgspec

from mmext.label_check.expectations import Expectations, HeadFacts


def test_defaults_are_those_of_mmseg():
    expected = Expectations()
    assert expected.ignore_index == 255
    assert expected.task == 'semantic'
    assert not expected.reduce_zero_label


def test_round_trip():
    head = HeadFacts(
        place='model.decode_head', num_classes=3, class_weights=(('x', 3),)
    )
    expected = Expectations(heads=(head,), label_map=((0, 1),))
    content = msgspec.msgpack.encode(expected)
    assert msgspec.msgpack.decode(content, type=Expectations) == expected
