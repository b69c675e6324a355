"""Schedules against the length of the training."""

import pytest
import torch
from helpers.lint_findings import changed, lint

ITERS = {'type': 'IterBasedTrainLoop', 'max_iters': 100, 'val_interval': 10}


def schedule(train_cfg=None, **settings):
    changes = {'param_scheduler': [settings]}
    if train_cfg:
        changes['train_cfg'] = train_cfg
    return changed(changes)


def rules(cfg):
    return [each.rule for each in lint(cfg, 'SCHED')]


def test_clean():
    assert rules(changed({})) == []
    assert rules(changed({'param_scheduler': {'type': 'ConstantLR'}})) == []


def test_epochs_in_a_training_by_iterations():
    (found,) = lint(
        schedule(ITERS, type='MultiStepLR', milestones=[8]), 'SCHED001'
    )
    assert 'which is its default' in found.message
    assert found.options == {}
    assert 'multiply 8 by the iterations of an epoch' in found.remedy
    many = {'by_epoch': False, 'max_iters': 90000, 'val_interval': 9000}
    for settings in (
        dict(type='PolyLR', power=0.9),
        dict(type='PolyLR', end=90000),
        dict(type='MultiStepLR', milestones=[60000, 80000]),
    ):
        (found,) = lint(schedule(many, **settings), 'SCHED001')
        assert found.options == {'param_scheduler[0].by_epoch': False}
    (found,) = lint(schedule(many, type='StepLR', step_size=30), 'SCHED001')
    assert found.options == {}
    cfg = schedule(many, type='PolyLR', convert_to_iter_based=True)
    assert lint(cfg, 'SCHED001') == []
    cfg = schedule(ITERS, type='MultiStepLR', milestones=[8], by_epoch=True)
    (found,) = lint(cfg, 'SCHED001')
    assert found.key == 'param_scheduler[0].by_epoch'
    assert rules(schedule(ITERS, type='ConstantLR', by_epoch=False)) == []


@pytest.mark.parametrize(
    ('settings', 'expected'),
    [
        (dict(type='ExponentialLR', gamma=0.9, begin=12), ['SCHED002']),
        (dict(type='ExponentialLR', gamma=0.9, begin=11), []),
        (dict(type='MultiStepLR', milestones=[16, 22]), ['SCHED003']),
        (dict(type='MultiStepLR', milestones=[8], end=8), ['SCHED003']),
        (dict(type='PolyLR', end=12), []),
        (dict(type='PolyLR', end=24), ['SCHED004']),
        (dict(type='PolyLR', end=6), ['SCHED004']),
        (dict(type='CosineAnnealingLR', T_max=12, end=12), []),
        # Without an end it lasts as long as the training.
        (dict(type='CosineAnnealingLR', T_max=12), []),
        (dict(type='CosineAnnealingLR', T_max=6, end=12), ['SCHED005']),
        (dict(type='CosineAnnealingLR', T_max=24), ['SCHED005']),
        (dict(type='LinearLR', end=12), ['SCHED006']),
        (dict(type='LinearLR'), ['SCHED006']),
        (dict(type='LinearLR', end=3), []),
        (dict(type='LinearLR', start_factor=1, end_factor=0, end=12), []),
        (dict(type='LinearLR', end=1), ['SCHED008']),
        (dict(type='LinearLR', end=1, convert_to_iter_based=True), []),
        (dict(type='LinearLR', by_epoch=False, end=1), ['SCHED008']),
        (dict(type='LinearLR', by_epoch=False, end=2), []),
        (dict(type='ConstantLR', end=1), ['SCHED008']),
        (dict(type='ConstantLR', factor=1, end=1), []),
    ],
)
def test_one_schedule(settings, expected):
    assert rules(schedule(**settings)) == expected


def test_some_milestones_are_late():
    (found,) = lint(schedule(type='MultiStepLR', milestones=[8, 16]))
    assert '[16] are not reached' in found.message
    assert found.severity.name == 'INFO'


def test_a_schedule_may_follow_another():
    cosine = dict(type='CosineAnnealingLR', T_max=6, begin=0, end=6)
    constant = dict(type='ConstantLR', begin=6, end=12)
    assert rules(changed({'param_scheduler': [cosine, constant]})) == []


def test_overlapping_decays():
    step = dict(type='StepLR', step_size=3, begin=0, end=12)
    poly = dict(type='PolyLR', begin=6, end=12)
    (found,) = lint(changed({'param_scheduler': [step, poly]}), 'SCHED007')
    assert 'StepLR (0 to 12) and PolyLR (6 to 12 epochs)' in found.message
    momentum = dict(type='PolyMomentum', begin=6, end=12)
    assert rules(changed({'param_scheduler': [step, momentum]})) == []
    step['end'] = 6
    assert rules(changed({'param_scheduler': [step, poly]})) == []


def test_effect_is_what_the_schedule_does():
    """A milestone after the end of its schedule does nothing."""
    from mmengine.optim import MultiStepLR

    def lr_after(end):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        each = MultiStepLR(optimizer, [16], gamma=0.1, end=end)
        for _ in range(24):
            optimizer.step()
            each.step()
        return optimizer.param_groups[0]['lr']

    assert lr_after(12) == 1.0
    assert lr_after(24) == pytest.approx(0.1)


@pytest.mark.parametrize('kind', ['LinearLR', 'ConstantLR'])
def test_a_factor_of_one_step_stays(kind):
    from mmengine.registry import PARAM_SCHEDULERS

    def lr_after(end):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        settings = {'type': kind, 'optimizer': optimizer, 'end': end}
        each = PARAM_SCHEDULERS.build(settings)
        for _ in range(9):
            optimizer.step()
            each.step()
        return optimizer.param_groups[0]['lr']

    assert lr_after(1) == pytest.approx(1 / 3)
    assert lr_after(2) == pytest.approx(1)


def test_one_epoch_becomes_its_iterations():
    (found,) = lint(schedule(type='LinearLR', end=1), 'SCHED008')
    assert 'multiplies the lr by start_factor=0.33333' in found.message
    fix = {'param_scheduler[0].convert_to_iter_based': True}
    assert found.options == fix
    iterations = schedule(type='LinearLR', by_epoch=False, end=1)
    assert lint(iterations, 'SCHED008')[0].options == {}
