"""Annotations of evaluators, and values that hooks wait for."""

import json

import pytest
from helpers.lint_findings import changed, lint
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.hooks import CheckpointHook

DATA = 'val_dataloader.dataset'


def files(loader, evaluator, **more):
    return {
        f'{DATA}.data_root': 'data/',
        f'{DATA}.ann_file': loader,
        'val_evaluator.ann_file': evaluator,
        **more,
    }


@pytest.mark.parametrize(
    'evaluator', ['data/a.json', './data//a.json', 'data/b/../a.json']
)
def test_the_same_file(evaluator):
    assert lint(files('a.json', evaluator), 'EVAL') == []


def test_other_files():
    (found,) = lint(files('a.json', 'data/b.json'), 'EVAL001')
    assert found.key == 'val_evaluator.ann_file'
    # Links and copies cannot be seen from here.
    assert (found.severity.name, found.options) == ('WARNING', {})
    assert 'is not known' in found.message


def test_left_over_of_a_base(tmp_path):
    base = tmp_path / 'base.py'
    cfg = changed(files('a.json', 'data/a.json'))
    base.write_text(cfg.pretty_text)
    child = tmp_path / 'child.py'
    child.write_text(
        "_base_ = 'base.py'\n"
        "val_dataloader = dict(dataset=dict(data_root='mine/'))\n"
    )
    (found,) = lint(Config.fromfile(child), 'EVAL001')
    assert found.severity.name == 'ERROR'
    assert found.options == {'val_evaluator.ann_file': 'mine/a.json'}


def test_files_of_the_same_images(tmp_path):
    for name, ids in (('a', (1, 2)), ('b', (2, 1)), ('c', (3,))):
        images = [{'id': number} for number in ids]
        text = json.dumps({'images': images, 'name': name})
        (tmp_path / f'{name}.json').write_text(text)

    def find(one, two):
        paths = (str(tmp_path / f'{name}.json') for name in (one, two))
        return lint(files(*paths), 'EVAL001')

    assert find('a', 'b') == []
    (found,) = find('a', 'c')
    assert (found.severity.name, found.options) == ('ERROR', {})


def test_two_kinds_of_annotations():
    """Of a panoptic set, boxes are compared with another file."""
    changes = files('panoptic.json', '')
    changes['val_evaluator'] = [
        {'type': 'CocoPanopticMetric', 'ann_file': 'data/panoptic.json'},
        {'type': 'CocoMetric', 'ann_file': 'data/instances.json'},
    ]
    del changes['val_evaluator.ann_file']
    assert lint(changes, 'EVAL001') == []


def best(name, **evaluator):
    metric = {'type': 'CocoMetric', **evaluator}
    return {
        'default_hooks.checkpoint.save_best': name,
        'val_evaluator': metric,
    }


@pytest.mark.parametrize(
    'changes',
    [
        best('auto'),
        best('coco/bbox_mAP'),
        best('coco/segm_mAP_50', metric=['bbox', 'segm']),
        best('coco/cat_precision', classwise=True),
        best('mine/bbox_mAP_s', prefix='mine'),
        best('coco/AR@100', metric='proposal'),
        best('mIoU', type='mmseg.IoUMetric'),
        best('mDice', type='mmseg.IoUMetric', iou_metrics=['mDice']),
        best('pascal_voc/AP50', type='VOCMetric'),
        best('lvis/whatever', type='LVISMetric'),
        best('whatever', type='Mine'),
        best('whatever', type='MOTChallengeMetrics'),
    ],
)
def test_given(changes):
    assert lint(changes, 'EVAL002') == []


@pytest.mark.parametrize(
    ('changes', 'right'),
    [
        (best('bbox_mAP'), 'coco/bbox_mAP'),
        (best('mAP'), None),
        (best('coco/segm_mAP'), None),
        (best(['coco/bbox_mAP', 'bbox_mAP_50']), 'coco/bbox_mAP_50'),
        (best('mAP', type='VOCMetric'), 'pascal_voc/mAP'),
        (best('mDice', type='mmseg.IoUMetric'), None),
        (best('bbox_AP', type='LVISMetric'), None),
    ],
)
def test_not_given(changes, right):
    (found,) = lint(changes, 'EVAL002')
    assert found.severity.name == 'ERROR'
    assert list(found.options.values()) == ([right] if right else [])


def test_others_that_watch():
    hook = {'type': 'EarlyStoppingHook', 'monitor': 'bbox_mAP'}
    (found,) = lint({'custom_hooks': [hook]}, 'EVAL002')
    assert found.key == 'custom_hooks[0].monitor'
    plateau = {'type': 'ReduceOnPlateauLR', 'monitor': 'loss'}
    (found,) = lint({'param_scheduler': [plateau]}, 'EVAL002')
    assert found.key == 'param_scheduler[0].monitor'


def test_is_what_the_hook_says():
    hook = CheckpointHook(save_best='bbox_mAP', rule='greater')
    hook.out_dir = ''
    assert hook.key_indicators == ['bbox_mAP']
    assert Evaluator([]).metrics == []
    with pytest.raises(KeyError, match='bbox_mAP'):
        hook._save_best_checkpoint(_Runner(), {'coco/bbox_mAP': 0.1})


class _Runner:
    epoch = iter = 0
    message_hub = None
