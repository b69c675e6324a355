"""Transforms are found in wrappers of data sets and of transforms."""

from types import SimpleNamespace

from mmcv.transforms import Compose, RandomApply, RandomChoice
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset

from mmext.datasets.transforms.pipeline_walk import transforms_of


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


def test_pipelines_of_wrappers_and_none():
    inner = Data(pipeline=[one])
    wrapper = SimpleNamespace(pipeline=[two], dataset=inner)
    found = list(transforms_of(wrapper))
    assert found[0] == (wrapper, two)
    assert (inner, one) in found
    assert list(transforms_of(SimpleNamespace(pipeline=None))) == []
    assert list(transforms_of(object())) == []
    composed = SimpleNamespace(pipeline=Compose([one]))
    assert (composed, one) in list(transforms_of(composed))
