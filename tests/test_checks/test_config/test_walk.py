"""Walking the dicts of a config."""

import os
from types import SimpleNamespace as Box

import pytest
from mmcv.transforms import RandomApply, RandomChoice
from mmengine.config import ConfigDict
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset

from mmext.checks.config.walk import (
    copy_tree,
    dataset_configs,
    inner_dataset_configs,
    inner_datasets,
    join_key,
    option_key,
    split_key,
    transforms_of,
    walk_datasets,
    walk_dicts,
)


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
    assert join_key(path) == text


@pytest.mark.parametrize('key', ['a.b[0][-1].c', 'a.b.0.-1.c', 'a.b[0].-1.c'])
def test_keys_are_read_in_both_forms(key):
    assert split_key(key) == ('a', 'b', 0, -1, 'c')
    assert option_key(key) == 'a.b.0.-1.c'
    assert join_key(split_key(key)) == 'a.b[0][-1].c'


def test_names_every_dict_the_outer_ones_first():
    node = {'a': {'b': [{'c': 1}, 2, ({'d': {}},)]}, 'e': 'text'}
    assert [join_key(path) for path, _ in walk_dicts(node)] == [
        '',
        'a',
        'a.b[0]',
        'a.b[2][0]',
        'a.b[2][0].d',
    ]


def test_skips_keys():
    node = {'custom_keys': {'x': {}}, 'a': {'custom_keys': {}}}
    dicts = walk_dicts(node, ('m',), skip=('custom_keys',))
    assert [join_key(path) for path, _ in dicts] == ['m', 'm.a']


def test_copies_containers_alone():
    """A module in a config cannot be copied, and need not be."""
    tree = {'a': [1, ({'b': os},)], 'c': ConfigDict(d=2)}
    copied = copy_tree(tree)
    assert copied == tree
    copied['a'][1][0]['b'] = None
    copied['c']['d'] = 3
    assert tree['a'][1][0]['b'] is os
    assert tree['c']['d'] == 2


def test_configs_of_data_sets():
    a, b, c = {'name': 'a'}, {'name': 'b'}, {'name': 'c'}
    pair = {'datasets': [a, {'dataset': b}]}
    outer = {'dataset': pair, 'datasets': (c, 'no dict')}
    assert inner_dataset_configs(a) == []
    assert inner_dataset_configs({'dataset': None, 'datasets': []}) == []
    configs = dataset_configs(outer, ('loader', 'dataset'))
    assert [(join_key(path), node.get('name')) for path, node in configs] == [
        ('loader.dataset', None),
        ('loader.dataset.dataset', None),
        ('loader.dataset.dataset.datasets[0]', 'a'),
        ('loader.dataset.dataset.datasets[1]', None),
        ('loader.dataset.dataset.datasets[1].dataset', 'b'),
        ('loader.dataset.datasets[0]', 'c'),
    ]
    assert list(dataset_configs(None)) == []
    assert [path for path, _ in dataset_configs([a, [b]])] == [(0,), (1, 0)]


def test_walk():
    a, b, c = Box(name='a'), Box(name='b'), Box(name='c')
    pair = Box(datasets=[a, Box(dataset=b)])
    outer = Box(_dataset=pair, dataset=c)
    assert inner_datasets(a) == []
    assert inner_datasets(outer) == [c, pair]
    names = [getattr(dataset, 'name', '') for dataset in walk_datasets(outer)]
    assert names == ['', 'c', '', 'a', '', 'b']


def one(results):
    return results


def two(results):
    return results


class Data(BaseDataset):
    def load_data_list(self):
        return [{'x': 1}]


def test_finds_nested_ones_with_their_data_set():
    first = Data(pipeline=[one, RandomChoice([[two], [one]])])
    second = Data(pipeline=[RandomApply([two], prob=0.5)])
    whole = ConcatDataset([first, second])
    pairs = list(transforms_of(whole))
    pairs += transforms_of(RepeatDataset(first, times=2))
    plain = [
        (dataset, transform)
        for dataset, transform in pairs
        if transform in (one, two)
    ]
    own = [(first, one), (first, two), (first, one)]
    assert plain == [*own, (second, two), *own]
