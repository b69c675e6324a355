"""The classes that a training with a config would have."""

import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from mmext.checks.config import read_config_classes


def config_of(**dataset):
    return Config({'train_dataloader': {'dataset': dataset}})


@pytest.mark.parametrize('file', [False, True])
def test_classes_are_those_of_the_built_set(tmp_path, file):
    names = ['red_cell', 'b', 'c']
    (tmp_path / 'names.txt').write_text('\n'.join(names))
    given = str(tmp_path / 'names.txt') if file else names
    config = config_of(
        type='mmdet.CocoDataset',
        metainfo={'classes': given},
        lazy_init=True,
    )
    with DefaultScope.overwrite_default_scope('mmdet'):
        built = DATASETS.build(config.train_dataloader.dataset)
    assert list(read_config_classes(config)) == names
    assert list(built.metainfo['classes']) == names


def test_classes_inside_of_wrappers():
    plain = {'type': 'CocoDataset', 'metainfo': {'classes': ('a', 'b')}}
    config = config_of(
        type='RepeatDataset',
        times=2,
        dataset={'type': 'ConcatDataset', 'datasets': [plain, dict(plain)]},
    )
    before = config.pretty_text
    assert read_config_classes(config) == ('a', 'b')
    assert config.pretty_text == before


@pytest.mark.parametrize('by', ['_scope_', 'default_scope', 'prefix'])
def test_types_are_those_of_their_scope(by):
    config = config_of(type='ADE20KDataset')
    if by == 'default_scope':
        config.default_scope = 'mmseg'
    elif by == '_scope_':
        config.train_dataloader.dataset['_scope_'] = 'mmseg'
    else:
        config.train_dataloader.dataset.type = 'mmseg.ADE20KDataset'
    assert read_config_classes(config)[:2] == ('wall', 'building')
    assert len(read_config_classes(config)) == 150


def test_rejects_parts_with_other_classes():
    parts = [
        {'type': 'CocoDataset', 'metainfo': {'classes': names}}
        for names in (('a', 'b'), ('b', 'a'))
    ]
    config = config_of(type='ConcatDataset', datasets=parts)
    with pytest.raises(ValueError, match=r'got 2 in .*\[0\] and 2 in .*\[1\]'):
        read_config_classes(config)


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        (Config({}), r'must have train_dataloader\.dataset .* got None'),
        (config_of(type='NoSuchSet'), "registered data set, got 'NoSuchSet'"),
        (config_of(type='BaseDetDataset'), 'class names, got None'),
        (
            config_of(type='CocoDataset', metainfo={'classes': 'cat'}),
            "class names, got 'cat'",
        ),
    ],
)
def test_rejects_configs(config, message):
    with pytest.raises(ValueError, match=message):
        read_config_classes(config)
