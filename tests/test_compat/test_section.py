"""Reading a foreign config without losing a key."""

import copy

import pytest
from mmengine import ConfigDict

from mmext.compat._section import (
    Section,
    agree,
    component,
    same,
    to_plain,
    with_host_prefix,
)


def test_to_plain_copies_containers():
    source = ConfigDict(a=[dict(b=(1, 2))], c='x')
    plain = to_plain(source)
    assert plain == {'a': [{'b': (1, 2)}], 'c': 'x'}
    assert type(plain) is dict
    assert type(plain['a'][0]) is dict
    plain['a'][0]['b'] = 0
    assert source.a[0].b == (1, 2)


@pytest.mark.parametrize(
    ('first', 'second', 'expected'),
    [
        ((1, 2), [1, 2], True),
        ({'a': [(1,)]}, {'a': ([1],)}, True),
        ({'a': 1}, {'a': 1, 'b': 2}, False),
        ([1, 2], [2, 1], False),
        ('x', 'x', True),
    ],
)
def test_same(first, second, expected):
    assert same(first, second) is expected


def test_agree_takes_the_common_value():
    assert agree('size', {'a': (1, 2), 'b': [1, 2]}) == (1, 2)


def test_agree_rejects_different_values():
    with pytest.raises(ValueError, match=r'K must be the same .* a=1, b=2'):
        agree('K', {'a': 1, 'b': 2})


def test_prefixes_what_mmdet_registers():
    source = {
        'type': 'SingleRoIExtractor',
        'roi_layer': {'type': 'RoIAlign'},
        'costs': [{'type': 'IoUCost'}, {'type': 'mmdet.IoUCost'}],
        'norm': ({'type': 'GN'},),
        'name': 'ResNet',
    }
    before = copy.deepcopy(source)
    assert with_host_prefix(source) == {
        'type': 'mmdet.SingleRoIExtractor',
        'roi_layer': {'type': 'RoIAlign'},
        'costs': [{'type': 'mmdet.IoUCost'}, {'type': 'mmdet.IoUCost'}],
        'norm': ({'type': 'GN'},),
        'name': 'ResNet',
    }
    assert source == before


def test_component_keeps_a_class_as_type():
    assert component({'type': dict, 'a': 1}, 'x') == {'type': dict, 'a': 1}


def test_component_rejects_what_is_no_dict():
    with pytest.raises(TypeError, match=r'model\.neck must be a dict, got 3'):
        component(3, 'model.neck')


def test_component_rejects_a_missing_type():
    with pytest.raises(ValueError, match=r"model\.neck must have a key 'type"):
        component({'depth': 1}, 'model.neck')


def test_component_rejects_an_unknown_type():
    with pytest.raises(ValueError, match=r"neck\.type must name .*got 'SFP'"):
        component({'type': 'SFP'}, 'model.neck')


def test_section_takes_every_key_once():
    source = {'a': 1, 'b': {'c': 2}, 'd': None}
    section = Section(source, 'model')
    assert section.take('a') == 1
    assert section.take('a', 5) == 5
    inner = section.section('b')
    assert inner.place == 'model.b'
    assert inner.rest() == {'c': 2}
    assert section.rest() == {'d': None}
    inner.close()
    section.close()
    assert source == {'a': 1, 'b': {'c': 2}, 'd': None}


def test_section_rejects_what_is_no_dict():
    with pytest.raises(TypeError, match=r'model must be a dict, got \[1\]'):
        Section([1], 'model')


def test_take_rejects_a_missing_key():
    section = Section({'b': 1}, 'model')
    with pytest.raises(ValueError, match="model must have a key 'a', got"):
        section.take('a')


@pytest.mark.parametrize('value', [False, 2, 1, 'True', None])
def test_expect_rejects_another_value(value):
    section = Section({'flag': value}, 'model')
    with pytest.raises(ValueError, match=r'model\.flag must be True, got .*x'):
        section.expect('flag', [True], remedy='x')


def test_expect_gives_the_value():
    section = Section({'a': [1, 2]}, 'model')
    assert section.expect('a', [(1, 2), [1, 2]], remedy='x') == [1, 2]
    assert section.expect('a', [7], default=7, remedy='x') == 7
    with pytest.raises(ValueError, match="must have a key 'a'"):
        section.expect('a', [7], remedy='x')


def test_close_rejects_a_left_key():
    section = Section({'a': 1}, 'model')
    with pytest.raises(ValueError, match=r'model must .* got a=1; mmext has'):
        section.close()
    with pytest.raises(ValueError, match='got a=1; use b'):
        section.close({'a': 'use b'})
