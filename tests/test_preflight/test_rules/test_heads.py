"""Numbers of classes in heads and in the data."""

import pytest
from helpers.lint_findings import lint
from torch import nn

CLASSES = ('road', 'car', 'tree')


def data(**splits):
    """Changes that name the classes of splits."""
    return {
        f'{split}_dataloader.dataset.metainfo': {'classes': classes}
        for split, classes in splits.items()
    }


BOTH = data(train=CLASSES, val=CLASSES)


@pytest.mark.parametrize(
    ('count', 'rule', 'text'),
    [
        (3, None, ''),
        (2, 'HEAD001', 'one fewer than the data: which is missing?'),
        (4, 'HEAD002', 'one more than the data: is the background counted?'),
        (1, 'HEAD001', 'the data have 3 (road, car, tree)'),
        (80, 'HEAD002', 'the data have 3 (road, car, tree)'),
    ],
)
def test_one_head(count, rule, text):
    key = 'model.bbox_head.num_classes'
    found = lint({**BOTH, key: count}, 'HEAD')
    assert [each.rule for each in found] == ([rule] if rule else [])
    if rule:
        assert text in found[0].message
        # Both are said in the same place: which is meant is not known.
        assert found[0].options == {}
        assert found[0].severity.name == ('ERROR' if count < 3 else 'WARNING')


def test_all_heads():
    roi_head = {
        'type': 'StandardRoIHead',
        'bbox_head': [{'num_classes': 80}, {'num_classes': 3}],
        'mask_head': {'num_classes': 81},
    }
    changes = {**BOTH, 'model.bbox_head': None, 'model.roi_head': roi_head}
    assert [each.key for each in lint(changes, 'HEAD')] == [
        'model.roi_head.bbox_head[0].num_classes',
        'model.roi_head.mask_head.num_classes',
    ]


def test_auxiliary_heads():
    heads = [
        {'type': 'mmseg.FCNHead', 'num_classes': 19},
        {'type': 'mmseg.STDCHead', 'num_classes': 2},
    ]
    changes = {**BOTH, 'model.bbox_head.num_classes': 3}
    changes['model.auxiliary_head'] = heads
    (found,) = lint(changes, 'HEAD')
    assert found.key == 'model.auxiliary_head[0].num_classes'


def test_a_built_model_counts():
    model = nn.Module()
    model.bbox_head = nn.Module()
    model.bbox_head.num_classes = 3
    assert lint(BOTH, 'HEAD', model=model) == []
    assert lint(BOTH, 'HEAD')


def test_a_built_model_with_texts_for_classes():
    model = nn.Module()
    model.bbox_head = nn.Module()
    model.bbox_head.num_classes = 256
    assert lint(BOTH, 'HEAD', model=model)
    assert (
        lint({**BOTH, 'model.language_model': {}}, 'HEAD', model=model) == []
    )
    model.query_head = nn.Module()
    model.query_head.class_vocabulary = lambda training: ()
    assert lint(BOTH, 'HEAD', model=model) == []


@pytest.mark.parametrize(
    'key', ['language_model', 'panoptic_fusion_head', 'text_encoder']
)
def test_models_that_count_otherwise(key):
    changes = {**data(train=CLASSES, val=('x',)), f'model.{key}': {}}
    assert lint(changes, 'HEAD') == []


def test_splits_in_another_order():
    changes = data(train=CLASSES, val=('car', 'road', 'tree'))
    changes['model.bbox_head.num_classes'] = 3
    (found,) = lint(changes, 'HEAD')
    assert (found.rule, found.severity.name) == ('HEAD003', 'ERROR')
    assert "'car' as class 0, and train_dataloader 'road'" in found.message


def test_splits_with_other_classes():
    changes = data(train=CLASSES, val=('car',))
    changes['model.bbox_head.num_classes'] = 3
    (found,) = lint(changes, 'HEAD')
    assert (found.rule, found.severity.name) == ('HEAD003', 'INFO')
