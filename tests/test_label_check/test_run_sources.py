"""From settings to what is checked."""

import json

import pytest
from label_data import write_pairs

from mmext.label_check.run_sources import sources_of
from mmext.label_check.settings import CheckSettings


@pytest.fixture
def pairs(tmp_path):
    return write_pairs(tmp_path / 'data')


def test_masks(pairs):
    (source,) = sources_of(
        CheckSettings(masks=pairs / 'masks', classes=['a', 'b', 'c'])
    )
    assert source.expected.num_classes == 3
    assert source.expected.classes == ('a', 'b', 'c')
    assert len(list(source.samples())) == 6


def test_coco(tmp_path):
    path = tmp_path / 'a.json'
    categories = [{'id': 3, 'name': 'cat'}, {'id': 1, 'name': 'dog'}]
    content = {'images': [], 'annotations': [], 'categories': categories}
    path.write_text(json.dumps(content))
    (source,) = sources_of(CheckSettings(coco=path))
    assert source.expected.classes == ('cat', 'dog')
    (source,) = sources_of(CheckSettings(coco=path, classes=['dog', 'cat']))
    assert source.expected.classes == ('dog', 'cat')


def test_voc(tmp_path):
    (tmp_path / 'a.xml').write_text('<annotation/>')
    (source,) = sources_of(CheckSettings(voc=tmp_path))
    assert source.learn_classes
    (sample,) = source.samples()
    assert sample.annotation == str(tmp_path / 'a.xml')


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({}, 'give a config, or --masks.* got none of them'),
        (
            {'config': 'a.py', 'masks': '.'},
            'got the config a.py and --masks .',
        ),
        ({'coco': 'a', 'voc': 'b'}, 'got --coco a and --voc b'),
        ({'masks': '.'}, '--masks needs --num-classes'),
        (
            {'masks': '.', 'num_classes': 3, 'classes': ['a']},
            '--classes must have as many names .* got 1 and 3',
        ),
    ],
)
def test_rejects(settings, message):
    with pytest.raises(ValueError, match=message):
        sources_of(CheckSettings(**settings))


def test_rejects_what_is_not_there(tmp_path):
    none = tmp_path / 'none'
    with pytest.raises(FileNotFoundError, match='--coco must be an annotat'):
        sources_of(CheckSettings(coco=none))
    with pytest.raises(NotADirectoryError, match='voc must be an existing'):
        sources_of(CheckSettings(voc=none))
    with pytest.raises(NotADirectoryError, match='--images must be'):
        sources_of(CheckSettings(voc=tmp_path, images=none))
