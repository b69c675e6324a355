"""A schedule that is changed on resume is that of an uninterrupted run.

The oracle is MMEngine itself: a training that had the changed config from its
first step on. Learning rates of all later steps, and the state of optimizer
and schedulers at the end, must be the same, bit by bit.
"""

import pytest
import torch
from helpers import toy_training as toy

HOOKS = dict(
    checkpoint=dict(type='CheckpointHook', interval=1),
    logger=dict(type='LoggerHook', interval=100),
)
EVERY_STEP = dict(
    HOOKS, checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False)
)
SGD = dict(optimizer=dict(type='SGD', lr=0.05, momentum=0.9))
ADAM = dict(optimizer=dict(type='Adam', lr=0.05))
GROUPS = dict(
    optimizer=dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=0.1),
    paramwise_cfg=dict(bias_lr_mult=2.0, bias_decay_mult=0.0),
)
WARMUP = dict(
    type='LinearLR', start_factor=0.1, begin=0, end=3, by_epoch=False
)


def changes(epochs, schedule, optimizer=SGD, **more):
    """Config of a training of so many epochs of two or three steps."""
    return dict(
        train_cfg=dict(by_epoch=True, max_epochs=epochs, val_interval=100),
        train_dataloader=toy.loader(size=6),
        val_dataloader=None,
        val_cfg=None,
        val_evaluator=None,
        optim_wrapper=optimizer,
        param_scheduler=schedule,
        default_hooks=HOOKS,
        **more,
    )


def schedule_state(path):
    """What schedulers and the optimizer's settings are at the end."""
    saved = torch.load(path, weights_only=False)
    optimizer = saved['optimizer']
    parts = [optimizer] if 'param_groups' in optimizer else optimizer.values()
    return {
        'schedulers': saved['param_schedulers'],
        'groups': [part['param_groups'] for part in parts],
        'base': [part.get('base_param_settings') for part in parts],
    }


def compare(tmp_path, before, after, at='epoch_2.pth', last='epoch_4.pth'):
    """Resume ``before`` as ``after``; compare with ``after`` all the time."""
    expected = toy.train(tmp_path / 'whole', **after)
    toy.train(tmp_path / 'a', **before)
    trace = toy.train(
        tmp_path / 'b',
        resume=True,
        load_from=str(tmp_path / 'a' / at),
        **after,
    )
    rates = [line['lr'] for line in toy.steps(trace)]
    whole = [line['lr'] for line in toy.steps(expected)]
    assert rates == whole[-len(rates) :]
    assert rates
    states = [
        schedule_state(tmp_path / name / last) for name in ('b', 'whole')
    ]
    assert toy.differences(*states) == []
    (log,) = (tmp_path / 'b').rglob('*.log')
    return log.read_text()


# What follows the length of the training, and what is lengthened by hand.
CASES = {
    'ConstantLR': [dict(factor=0.5)] * 2,
    'CosineAnnealingLR': [dict()] * 2,
    'CosineRestartLR': [
        dict(periods=[2], restart_weights=[1], eta_min=0.001),
        dict(periods=[2, 2], restart_weights=[1, 0.5], eta_min=0.001),
    ],
    'ExponentialLR': [dict(gamma=0.8)] * 2,
    'LinearLR': [dict(start_factor=1.0, end_factor=0.1)] * 2,
    'MultiStepLR': [dict(milestones=[1]), dict(milestones=[1, 3])],
    'OneCycleLR': [dict(eta_max=0.2)] * 2,
    'PolyLR': [dict(eta_min=1e-4, power=0.9)] * 2,
    'StepLR': [dict(step_size=1)] * 2,
}
QUICK = ('CosineAnnealingLR', 'MultiStepLR', 'OneCycleLR', 'PolyLR')


@pytest.mark.parametrize(
    'name',
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
@pytest.mark.parametrize(
    'kind',
    [
        pytest.param('by epochs', marks=pytest.mark.slow),
        pytest.param('by iterations', marks=pytest.mark.slow),
        'converted, after a warm-up',
    ],
)
def test_longer_training(tmp_path, name, kind):
    parts = []
    for epochs, options in zip((2, 4), CASES[name], strict=True):
        scheduler = dict(type=name, by_epoch=True, **options)
        schedule = [scheduler]
        if kind == 'by iterations':
            scheduler['by_epoch'] = False
        elif kind != 'by epochs':
            scheduler.update(convert_to_iter_based=True)
            schedule = [WARMUP, {**scheduler, 'begin': 1}]
            if name == 'OneCycleLR':
                schedule = [scheduler]
        parts.append(changes(epochs, schedule, GROUPS))
    log = compare(tmp_path, *parts)
    assert 'recomputed' in log
    assert toy.steps(toy.read_trace(tmp_path / 'b' / 'trace.0'))[-1]['lr'] > 0


@pytest.mark.parametrize(
    'name',
    [
        'CosineAnnealingMomentum',
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                'ConstantMomentum',
                'CosineRestartMomentum',
                'ExponentialMomentum',
                'LinearMomentum',
                'MultiStepMomentum',
                'PolyMomentum',
                'StepMomentum',
            )
        ),
    ],
)
@pytest.mark.parametrize(
    'optimizer',
    [
        pytest.param(SGD, id='SGD', marks=pytest.mark.slow),
        pytest.param(ADAM, id='Adam'),
    ],
)
def test_momentum(tmp_path, name, optimizer):
    before, after = (
        changes(
            epochs,
            [
                dict(type=name, **options),
                dict(type='CosineAnnealingLR'),
            ],
            optimizer,
        )
        for epochs, options in zip(
            (2, 4), CASES[name.replace('Momentum', 'LR')], strict=True
        )
    )
    compare(tmp_path, before, after)


MAIN = dict(type='CosineAnnealingLR', begin=1, convert_to_iter_based=True)


@pytest.mark.slow
def test_from_within_an_epoch(tmp_path):
    before, after = (
        {**changes(epochs, [WARMUP, MAIN]), 'default_hooks': EVERY_STEP}
        for epochs in (3, 5)
    )
    compare(tmp_path, before, after, 'iter_5.pth', 'iter_15.pth')


@pytest.mark.slow
def test_shorter_training(tmp_path):
    compare(
        tmp_path,
        changes(6, [WARMUP, MAIN]),
        changes(4, [WARMUP, MAIN]),
        'epoch_3.pth',
    )


def test_epochs_of_another_length(tmp_path):
    """Steps are counted as if epochs had always been so long."""
    after = changes(4, [WARMUP, MAIN])
    after['train_dataloader'] = toy.loader(size=6, batch_size=3)
    log = compare(tmp_path, changes(4, [WARMUP, MAIN]), after, 'epoch_2.pth')
    assert 'iterations per epoch' in log


def test_training_by_iterations(tmp_path):
    before, after = (
        {
            **changes(1, [WARMUP, dict(type='PolyLR', begin=3, **BY_ITER)]),
            'train_cfg': dict(by_epoch=False, max_iters=num, val_interval=99),
            'default_hooks': EVERY_STEP,
        }
        for num in (8, 13)
    )
    compare(tmp_path, before, after, 'iter_8.pth', 'iter_13.pth')


BY_ITER = dict(by_epoch=False, eta_min=1e-4)


@pytest.mark.slow
def test_several_optimizers(tmp_path):
    pair = dict(constructor='PairConstructor', counts=dict(maker=1, judge=2))
    schedules = dict(
        maker=dict(type='CosineAnnealingLR'),
        judge=[WARMUP, dict(type='PolyLR', begin=1, eta_min=1e-5)],
    )
    before, after = (
        changes(epochs, schedules, pair, model=dict(type='Pair'))
        for epochs in (2, 4)
    )
    log = compare(tmp_path, before, after)
    assert 'param_scheduler.judge[1].end' in log


@pytest.mark.slow
def test_another_scheduler(tmp_path):
    compare(
        tmp_path,
        changes(4, [dict(type='StepLR', step_size=1)]),
        changes(4, [dict(type='PolyLR', eta_min=0.001)]),
    )


@pytest.mark.parametrize(
    'scheduler',
    [
        dict(type='PolyLR', end=2),
        pytest.param(
            dict(type='CosineAnnealingLR', T_max=2), marks=pytest.mark.slow
        ),
        pytest.param(
            dict(type='PolyLR', end=6, by_epoch=False), marks=pytest.mark.slow
        ),
    ],
)
def test_never_goes_on_at_zero(tmp_path, scheduler):
    """The config itself says that the schedule is not longer."""
    before, after = changes(2, [scheduler]), changes(4, [scheduler])
    toy.train(tmp_path / 'a', **before)
    with pytest.raises(
        ValueError,
        match=r'lr of the next step: .* the schedule is at its end, and '
        r'train_cfg.max_epochs is 4: lengthen param_scheduler, too',
    ):
        toy.train(
            tmp_path / 'b',
            resume=True,
            load_from=str(tmp_path / 'a' / 'epoch_2.pth'),
            **after,
        )


@pytest.mark.slow
def test_schedule_that_ends_before_the_training_is_told(tmp_path):
    schedule = [dict(type='PolyLR', eta_min=0.01, end=2)]
    toy.train(tmp_path / 'a', **changes(2, schedule))
    trace = toy.train(
        tmp_path / 'b',
        resume=True,
        load_from=str(tmp_path / 'a' / 'epoch_2.pth'),
        **changes(4, schedule),
    )
    assert {line['lr'] for line in toy.steps(trace)} == {0.01}
    (log,) = (tmp_path / 'b').rglob('*.log')
    assert 'before that of the training (4)' in log.read_text()


@pytest.mark.slow
def test_later_resumes_are_as_before(tmp_path):
    """Once recomputed, the schedule is the one in the checkpoint."""
    compare(tmp_path, *(changes(n, [WARMUP, MAIN]) for n in (2, 4)))
    trace = toy.train(
        tmp_path / 'c',
        resume=True,
        load_from=str(tmp_path / 'b' / 'epoch_3.pth'),
        **changes(4, [WARMUP, MAIN]),
    )
    expected = toy.read_trace(tmp_path / 'b' / 'trace.0')
    assert toy.steps(trace) == toy.steps(expected)[-3:]
    (log,) = (tmp_path / 'c').rglob('*.log')
    assert 'recomputed' not in log.read_text()


def test_learning_rate_of_the_checkpoint_stays(tmp_path):
    """Another lr in the config is told, and not used."""
    before = changes(2, [WARMUP, MAIN])
    after = changes(
        4, [WARMUP, MAIN], dict(optimizer=dict(type='SGD', lr=9.0))
    )
    expected = toy.train(tmp_path / 'whole', **changes(4, [WARMUP, MAIN]))
    toy.train(tmp_path / 'a', **before)
    trace = toy.train(
        tmp_path / 'b',
        resume=True,
        load_from=str(tmp_path / 'a' / 'epoch_2.pth'),
        **after,
    )
    rates = [line['lr'] for line in toy.steps(trace)]
    assert rates == [line['lr'] for line in toy.steps(expected)][-6:]
    (log,) = (tmp_path / 'b').rglob('*.log')
    (row,) = (t for t in log.read_text().splitlines() if 'optimizer.lr' in t)
    assert row.split()[:4] == [
        'optim_wrapper.optimizer.lr',
        '0.05',
        '9',
        'checkpoint',
    ]


PLATEAU = dict(
    type='ReduceOnPlateauLR', monitor='mean', rule='less', patience=1
)
SCORES = [3, 4, 5, 2, 3, 4, 5, 6]


def with_validation(epochs, schedule, scores):
    return {
        **changes(epochs, schedule),
        'val_dataloader': toy.loader(size=2, shuffle=False),
        'val_cfg': dict(),
        'val_evaluator': dict(type='ToyMetric', scores=scores),
        'train_cfg': dict(by_epoch=True, max_epochs=epochs, val_interval=1),
    }


@pytest.mark.parametrize('at', [pytest.param(2, marks=pytest.mark.slow), 3])
def test_plateau_goes_on_counting(tmp_path, at):
    """It reduced once before, and does again, beyond the end of before."""
    expected = toy.train(
        tmp_path / 'whole', **with_validation(7, [PLATEAU], SCORES)
    )
    toy.train(tmp_path / 'a', **with_validation(3, [PLATEAU], SCORES))
    trace = toy.train(
        tmp_path / 'b',
        resume=True,
        # It was written before its validation, which is done first.
        load_from=str(tmp_path / 'a' / f'epoch_{at}.pth'),
        **with_validation(7, [PLATEAU], SCORES[at - 1 :]),
    )
    whole = [line['lr'] for line in toy.steps(expected)]
    rates = [line['lr'] for line in toy.steps(trace)]
    assert len(set(whole)) == 3
    assert rates == whole[-len(rates) :]


def test_plateau_with_another_schedule_is_refused(tmp_path):
    """After it has reduced, when it did is not known."""
    schedule = [dict(type='CosineAnnealingLR'), PLATEAU]
    toy.train(tmp_path, **with_validation(4, schedule, SCORES))
    with pytest.raises(
        ValueError,
        match=r'param_scheduler\[0\].T_max: 4 in the checkpoint, 8 now - lr '
        r'of parameter group 0 is .* in the checkpoint, where its schedulers '
        r'lead to .*ReduceOnPlateauLR. Resume with the param_scheduler',
    ):
        toy.train(
            tmp_path / 'b',
            resume=True,
            load_from=str(tmp_path / 'epoch_4.pth'),
            **with_validation(8, schedule, SCORES),
        )


@pytest.mark.slow
def test_plateau_with_another_schedule_before_it_has_reduced(tmp_path):
    schedule = [dict(type='CosineAnnealingLR'), PLATEAU]
    expected, trace = (
        toy.train(tmp_path / 'whole', **with_validation(6, schedule, SCORES)),
        toy.train(tmp_path / 'a', **with_validation(3, schedule, SCORES)),
    )
    trace = toy.train(
        tmp_path / 'b',
        resume=True,
        load_from=str(tmp_path / 'a' / 'epoch_1.pth'),
        **with_validation(6, schedule, SCORES),
    )
    assert [line['lr'] for line in toy.steps(trace)] == [
        line['lr'] for line in toy.steps(expected)
    ][3:]
