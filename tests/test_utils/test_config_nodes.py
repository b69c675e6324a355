"""Walking the dicts of a config."""

import os

import pytest
from mmengine.config import ConfigDict

from mmext.utils.config_nodes import copy_tree, place, walk_dicts


@pytest.mark.parametrize(
    ('path', 'text'),
    [
        ((), ''),
        (('model',), 'model'),
        ((0, 'a'), '[0].a'),
        (('a', 1, 2, 'b'), 'a[1][2].b'),
    ],
)
def test_places(path, text):
    assert place(path) == text


def test_names_every_dict_the_outer_ones_first():
    node = {'a': {'b': [{'c': 1}, 2, ({'d': {}},)]}, 'e': 'text'}
    assert [place(path) for path, _ in walk_dicts(node)] == [
        '',
        'a',
        'a.b[0]',
        'a.b[2][0]',
        'a.b[2][0].d',
    ]


def test_gives_the_dicts_themselves():
    node = ConfigDict(a=dict(b=1))
    found = dict(walk_dicts(node, ('model',)))
    assert found['model',] is node
    assert found['model', 'a'] is node['a']


def test_skips_keys():
    node = {'custom_keys': {'x': {}}, 'a': {'custom_keys': {}}}
    found = walk_dicts(node, ('m',), skip=('custom_keys',))
    assert [place(path) for path, _ in found] == ['m', 'm.a']


def test_values_have_no_dicts():
    assert list(walk_dicts('text')) == []
    assert list(walk_dicts(None)) == []


def test_copies_containers_alone():
    """A module in a config cannot be copied, and need not be."""
    tree = {'a': [1, ({'b': os},)], 'c': ConfigDict(d=2)}
    copied = copy_tree(tree)
    assert copied == tree
    copied['a'][1][0]['b'] = None
    copied['c']['d'] = 3
    assert tree['a'][1][0]['b'] is os
    assert tree['c']['d'] == 2
