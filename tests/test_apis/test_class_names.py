"""Names, templates, and the classes that a training would have."""

import pytest
from mmdet.datasets import CocoDataset, LVISDataset
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from mmext.apis.class_names import (
    check_templates,
    class_phrases,
    fill_templates,
    read_config_classes,
    read_lines,
)


def test_phrases():
    names = [
        'traffic_light',
        '  Band_Aid ',
        'bow_(weapon)',
        'a\tb__c',
        'crème',
    ]
    assert class_phrases(names) == (
        'traffic light',
        'Band Aid',
        'bow (weapon)',
        'a b c',
        'crème',
    )


@pytest.mark.parametrize('kind', [CocoDataset, LVISDataset])
def test_phrases_of_large_sets(kind):
    names = kind.METAINFO['classes']
    phrases = class_phrases(names)
    assert len(phrases) == len(set(phrases)) == len(names)
    assert not any('_' in phrase for phrase in phrases)


@pytest.mark.parametrize(
    ('names', 'error', 'message'),
    [
        ('cat', TypeError, r"got the string 'cat'; for one class .*\['cat'\]"),
        (['a', 3], TypeError, 'must be strings, got 3 at position 1'),
        ([], ValueError, 'at least one class, got none'),
        (['a', ' _ '], ValueError, "not be empty, got ' _ ' at position 1"),
        (
            ['a', 'b', 'a'],
            ValueError,
            "'a' at position 0 and 'a' at position 2",
        ),
        (['a_b', 'a b'], ValueError, "both read 'a b'"),
    ],
)
def test_rejects_names(names, error, message):
    with pytest.raises(error, match=message):
        class_phrases(names)


def test_templates_are_kept_as_they_are():
    given = ['{}', 'a {0} {} and {braces}']
    assert check_templates(given) == tuple(given)
    assert fill_templates(['x', '{}'], given) == [
        'x',
        'a {0} x and {braces}',
        '{}',
        'a {0} {} and {braces}',
    ]


@pytest.mark.parametrize(
    ('templates', 'error', 'message'),
    [
        ('a {}', TypeError, r"got the string 'a \{\}'"),
        ([], ValueError, 'at least one text, got none'),
        (['{}', 'a cat'], ValueError, "got 'a cat' at position 1"),
        (['{} or {}'], ValueError, r'exactly once.* at position 0'),
        (['a {x}'], ValueError, 'exactly once'),
        (['{}', 'a {}', '{}'], ValueError, r"'\{\}' again at position 2"),
    ],
)
def test_rejects_templates(templates, error, message):
    with pytest.raises(error, match=message):
        check_templates(templates)


def test_reads_lines(tmp_path):
    path = tmp_path / 'names.txt'
    path.write_bytes('\ufeff red cell \r\ncrème\nb\n\n'.encode())
    assert read_lines(path) == ['red cell', 'crème', 'b']


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'', 'one text a line, got none'),
        (b' \n\n', 'one text a line, got none'),
        (b'a\n\nb\n', 'no empty lines, got one at line 2'),
        (b'\na\n', 'at line 1; remove it'),
        (b'caf\xe9', 'must be text in UTF-8'),
    ],
)
def test_rejects_lines(tmp_path, content, message):
    path = tmp_path / 'names.txt'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_lines(path)


def test_rejects_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match='must be a text file'):
        read_lines(tmp_path / 'names.txt')


def config_of(**dataset):
    return Config({'train_dataloader': {'dataset': dataset}})


def test_classes_of_the_registered_set(checkout):
    file = 'configs/co_dino/co_dino_5scale_r50_8xb2_1x_coco.py'
    classes = read_config_classes(Config.fromfile(checkout / file))
    assert classes == CocoDataset.METAINFO['classes']


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
