"""Keys of data sets that their classes do not read."""

import pytest
from helpers.lint_findings import lint
from mmdet.datasets import CocoDataset
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

DATA = 'train_dataloader.dataset'


def prefix(kind='CocoDataset', **keys):
    return {f'{DATA}.type': kind, f'{DATA}.data_prefix': keys}


@pytest.mark.parametrize(
    'changes',
    [
        prefix(img='a'),
        prefix(img='a', seg='b'),
        prefix('mmseg.BaseSegDataset', img_path='a', seg_map_path='b'),
        prefix('VOCDataset', sub_data_root='VOC2007/'),
        prefix('Mine', anything='a'),
    ],
)
def test_read(changes):
    assert lint(changes, 'DATA007') == []


@pytest.mark.parametrize(
    ('changes', 'right'),
    [
        (prefix(img_path='a'), {'img': 'a'}),
        (prefix(img_prefix='a'), {'img': 'a'}),
        (
            prefix('mmseg.BaseSegDataset', img_dir='a', ann_dir='b'),
            {'img_path': 'a', 'seg_map_path': 'b'},
        ),
        # Which of both is meant?
        (prefix('mmseg.BaseSegDataset', images='a'), {}),
    ],
)
def test_not_read(changes, right):
    found = lint(changes, 'DATA007')
    assert {each.severity.name for each in found} == {'ERROR'}
    options = {k: v for each in found for k, v in each.options.items()}
    new = {f'{DATA}.data_prefix.{key}': right[key] for key in right}
    assert {k: v for k, v in options.items() if v != '__delete__'} == new


def test_a_text_for_the_prefix():
    changes = {f'{DATA}.data_prefix': 'train/'}
    (found,) = lint(changes, 'DATA007')
    assert found.options == {f'{DATA}.data_prefix': {'img': 'train/'}}
    changes[f'{DATA}.type'] = 'mmseg.BaseSegDataset'
    (found,) = lint(changes, 'DATA007')
    assert (found.severity.name, found.options) == ('ERROR', {})


def test_one_too_many_is_a_warning():
    """Nothing is missing, and nothing can be meant."""
    (found,) = lint(prefix(img='a', sub_data_root='b'), 'DATA007')
    assert (found.severity.name, found.options) == ('WARNING', {})


def test_is_what_the_data_set_says():
    dataset = CocoDataset(data_prefix={'img_path': 'a'}, lazy_init=True)
    with pytest.raises(KeyError, match='img'):
        dataset.parse_data_info(
            {'raw_img_info': {'file_name': 'a'}, 'raw_ann_info': []}
        )


@DATASETS.register_module(force=True)
class ComputedPrefix(BaseDataset):
    def load_data_list(self):
        return [self.data_prefix[key] for key in ('left', 'right')]


def test_computed_keys_are_not_known():
    assert lint(prefix('ComputedPrefix', left='a'), 'DATA007') == []


@pytest.mark.parametrize(
    ('key', 'right'),
    [
        ('filter_empty_gts', 'filter_empty_gt'),
        ('min_sizes', 'min_size'),
        ('mine', ''),
    ],
)
def test_filters(key, right):
    place = f'{DATA}.filter_cfg'
    (found,) = lint({place: {key: 1}}, 'DATA008')
    assert found.severity.name == ('WARNING' if right else 'INFO')
    renamed = {f'{place}.{key}': '__delete__', f'{place}.{right}': 1}
    assert found.options == (renamed if right else {})
    assert lint({place: {'filter_empty_gt': 1, 'min_size': 2}}, 'DATA') == []
