"""Loops, validation, checkpoints and switches."""

import pytest
from helpers.lint_findings import changed, lint
from mmengine.runner import Runner

from mmext.checks.preflight.rules.loops import TrainingLength, training_length
from mmext.checks.preflight.rules.subject import Subject

ITERS = {'type': 'IterBasedTrainLoop', 'max_iters': 100, 'val_interval': 10}


@pytest.mark.parametrize(
    ('removed', 'missing'),
    [
        ('val_evaluator', ('val_evaluator',)),
        ('val_cfg', ('val_cfg',)),
        ('optim_wrapper', ('optim_wrapper',)),
    ],
)
def test_incomplete(removed, missing):
    found = lint({removed: None}, 'LOOP001')
    assert [each.names for each in found] == [missing]


def test_incomplete_is_refused_by_the_runner(tmp_path):
    cfg = changed({'val_evaluator': None})
    assert lint(cfg, 'LOOP001')
    cfg.work_dir = str(tmp_path)
    with pytest.raises(ValueError, match='val_evaluator'):
        Runner.from_cfg(cfg)


def test_parts_of_configs_are_passed_over():
    changes = dict.fromkeys(('model', 'val_cfg'))
    assert lint(changes, 'LOOP001') == []
    changes = dict.fromkeys(('train_dataloader', 'val_dataloader', 'val_cfg'))
    assert lint(changes, 'LOOP001') == []


def test_validation():
    assert lint({'train_cfg.val_interval': 12}, 'LOOP') == []
    (found,) = lint({'train_cfg.val_interval': 13}, 'LOOP')
    assert (found.rule, found.severity.name) == ('LOOP003', 'INFO')
    (found,) = lint({'train_cfg.val_begin': 13}, 'LOOP')
    assert found.rule == 'LOOP002'


def test_checkpoints():
    (found,) = lint({'default_hooks.checkpoint.interval': 13}, 'LOOP')
    assert (found.rule, found.severity.name) == ('LOOP004', 'INFO')
    (found,) = lint({'train_cfg': ITERS}, 'LOOP')
    assert (found.rule, found.severity.name) == ('LOOP004', 'WARNING')
    # Of each iteration a checkpoint?
    assert found.options == {}
    changes = {'train_cfg': {**ITERS, 'val_interval': 500}}
    changes['default_hooks.checkpoint.interval'] = 500
    (found,) = lint(changes, 'LOOP004')
    assert found.options == {'default_hooks.checkpoint.by_epoch': False}
    by_iter = {'type': 'CheckpointHook', 'by_epoch': False, 'interval': 10}
    changes = {'train_cfg': ITERS, 'default_hooks.checkpoint': by_iter}
    assert lint(changes, 'LOOP') == []
    assert lint({'default_hooks.checkpoint.interval': -1}, 'LOOP') == []


@pytest.mark.parametrize(
    ('hook', 'effect'),
    [
        (dict(type='PipelineSwitchHook', switch_epoch=12), 'never switches'),
        (dict(type='mmdet.YOLOXModeSwitchHook', num_last_epochs=15), 'begin'),
        (dict(type='YOLOXModeSwitchHook', num_last_epochs=0), 'never'),
    ],
)
def test_switches(hook, effect):
    (found,) = lint({'custom_hooks': [hook]}, 'LOOP005')
    assert effect in found.message


def test_switches_in_time():
    hooks = [
        dict(type='PipelineSwitchHook', switch_epoch=10),
        dict(type='YOLOXModeSwitchHook', num_last_epochs=2),
    ]
    assert lint({'custom_hooks': hooks}, 'LOOP005') == []


def test_batch_size():
    changes = {'auto_scale_lr': {'base_batch_size': 16, 'enable': False}}
    assert lint(changes, 'LOOP006') == []
    assert lint(changes, 'LOOP006', world=8) == []
    (found,) = lint(changes, 'LOOP006', world=2)
    assert '4 images (2 of 2 processes)' in found.message
    assert 'scaled to them is 0.005' in found.message
    changes['auto_scale_lr'] = {'base_batch_size': 16, 'enable': True}
    assert lint(changes, 'LOOP006', world=2) == []
    changes = {
        'auto_scale_lr': {'base_batch_size': 16},
        'optim_wrapper.accumulative_counts': 4,
    }
    assert lint(changes, 'LOOP006', world=2) == []


def length(train_cfg):
    return training_length(Subject(changed({'train_cfg': train_cfg})))


@pytest.mark.parametrize(
    ('train_cfg', 'expected'),
    [
        (dict(type='EpochBasedTrainLoop', max_epochs=3), (True, 3)),
        (
            dict(type='mmext.ResumableIterBasedTrainLoop', max_iters=9),
            (False, 9),
        ),
        (dict(by_epoch=True, max_epochs=3), (True, 3)),
        (dict(by_epoch=False, max_iters=9, max_epochs=3), (False, 9)),
        (dict(type='MyLoop', max_epochs=3), None),
        (dict(max_epochs=3), None),
        (dict(by_epoch=True), None),
        (dict(by_epoch=True, max_epochs=True), None),
        (dict(by_epoch=True, max_epochs=0), None),
        ({}, None),
    ],
)
def test_reads_loops(train_cfg, expected):
    found = length(train_cfg)
    assert found == (expected and TrainingLength(*expected))


def test_in_words():
    assert TrainingLength(True, 3).unit == 'epochs'
    assert TrainingLength(True, 3).key == 'max_epochs'
    assert TrainingLength(False, 3).unit == 'iterations'
    assert TrainingLength(False, 3).key == 'max_iters'


@pytest.mark.parametrize(
    ('setting', 'key'),
    [
        ({'enable': True}, 'auto_scale_lr'),
        (
            {'enable': True, 'base_batch_size': None},
            'auto_scale_lr.base_batch_size',
        ),
        (
            {'enable': True, 'base_batchsize': 16},
            'auto_scale_lr.base_batchsize',
        ),
        ({'enable': False}, ''),
        ({'enable': True, 'base_batch_size': 16}, ''),
    ],
)
def test_base_batch_size(setting, key):
    found = lint({'auto_scale_lr': setting}, 'LOOP007')
    assert [each.key for each in found] == ([key] if key else [])
    if 'base_batchsize' in setting:
        assert found[0].options['auto_scale_lr.base_batch_size'] == 16
