"""Wrappers of data sets, nested."""

from types import SimpleNamespace as Box

from mmext.datasets.dataset_walk import inner_datasets, walk_datasets


def test_walk():
    a, b, c = Box(name='a'), Box(name='b'), Box(name='c')
    pair = Box(datasets=[a, Box(dataset=b)])
    outer = Box(_dataset=pair, dataset=c)
    assert inner_datasets(a) == []
    assert inner_datasets(outer) == [c, pair]
    names = [getattr(each, 'name', '') for each in walk_datasets(outer)]
    assert names == ['', 'c', '', 'a', '', 'b']


def test_empty_wrapper():
    assert inner_datasets(Box(datasets=None, dataset=None)) == []
