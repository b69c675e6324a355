"""A schedule goes on as it began; one that cannot is refused.

The oracle is MMEngine itself: a training that had the length of the resumed
one from its first step on. Learning rates of all later steps must be the
same, bit by bit.
"""

import pytest
from helpers import toy_training as toy

HOOKS = dict(
    checkpoint=dict(type='CheckpointHook', interval=1),
    logger=dict(type='LoggerHook', interval=100),
)
WARMUP = dict(
    type='LinearLR', start_factor=0.1, begin=0, end=3, by_epoch=False
)
STEPS = dict(type='MultiStepLR', milestones=[1, 3])
COSINE = dict(type='CosineAnnealingLR')
PLATEAU = dict(
    type='ReduceOnPlateauLR', monitor='mean', rule='less', patience=1
)
SCORES = [3, 4, 5, 2, 3, 4, 5, 6]


def changes(epochs, schedule, scores=None, size=6):
    """Config of a training of so many epochs of two or three steps."""
    result = dict(
        train_cfg=dict(by_epoch=True, max_epochs=epochs, val_interval=1),
        train_dataloader=toy.loader(size=size),
        val_dataloader=None,
        val_cfg=None,
        val_evaluator=None,
        param_scheduler=schedule,
        default_hooks=HOOKS,
    )
    if scores:
        result.update(
            val_dataloader=toy.loader(size=2, shuffle=False),
            val_cfg=dict(),
            val_evaluator=dict(type='ToyMetric', scores=scores),
        )
    return result


def rates(trace):
    return [line['lr'] for line in toy.steps(trace)]


def resume(folder, path, **config):
    return toy.train(folder, resume=True, load_from=str(path), **config)


@pytest.mark.parametrize(
    'schedule',
    [
        [WARMUP, STEPS],
        pytest.param(
            [dict(type='ExponentialLR', gamma=0.8)], marks=pytest.mark.slow
        ),
        pytest.param(
            [dict(type='StepLR', step_size=1, convert_to_iter_based=True)],
            marks=pytest.mark.slow,
        ),
        # The learning rate is meant to stay after it.
        pytest.param([WARMUP], marks=pytest.mark.slow),
        # Its end is that of the longer training already.
        [dict(COSINE, T_max=4, end=4)],
    ],
)
def test_a_longer_training_that_the_schedule_covers(tmp_path, schedule):
    expected = toy.train(tmp_path / 'whole', **changes(4, schedule))
    toy.train(tmp_path / 'a', **changes(2, schedule))
    trace = resume(
        tmp_path / 'b', tmp_path / 'a' / 'epoch_2.pth', **changes(4, schedule)
    )
    assert rates(trace) == rates(expected)[-len(rates(trace)) :] != []


@pytest.mark.parametrize(
    ('before', 'after', 'message'),
    [
        (
            changes(2, [COSINE]),
            changes(4, [COSINE]),
            r'max_epochs: 2 in .*param_scheduler\[0\].T_max: 2 in .*, 4 now .*'
            'cfg-options train_cfg.max_epochs=2. To',
        ),
        (
            changes(2, [dict(STEPS, end=2)]),
            changes(4, [dict(STEPS, end=2)]),
            r'train_cfg.max_epochs: 2 in the checkpoint, 4 now \(the schedule '
            'ends at 2.*load_from=',
        ),
        pytest.param(
            changes(2, [dict(type='PolyLR', end=6, by_epoch=False)]),
            changes(4, [dict(type='PolyLR', end=6, by_epoch=False)]),
            'the schedule ends at 2',
            marks=pytest.mark.slow,
        ),
        pytest.param(
            changes(4, [WARMUP, STEPS]),
            changes(4, [WARMUP, dict(STEPS, milestones=[2])]),
            r'param_scheduler\[1\].milestones',
            marks=pytest.mark.slow,
        ),
        pytest.param(
            changes(4, [STEPS]),
            changes(4, [COSINE]),
            r'param_scheduler\[0\].type: MultiStepLR in .* CosineAnnealingLR',
            marks=pytest.mark.slow,
        ),
        # What is a number of steps follows from the length of an epoch.
        pytest.param(
            changes(4, [dict(COSINE, convert_to_iter_based=True)]),
            changes(4, [dict(COSINE, convert_to_iter_based=True)], size=8),
            r'param_scheduler\[0\].T_max: 12 in the checkpoint, 16 now',
            marks=pytest.mark.slow,
        ),
    ],
)
def test_refused_before_the_first_step(tmp_path, before, after, message):
    toy.train(tmp_path / 'a', **before)
    with pytest.raises(ValueError, match=message):
        resume(tmp_path / 'b', tmp_path / 'a' / 'epoch_2.pth', **after)
    assert not list((tmp_path / 'b').glob('*.pth'))


@pytest.mark.parametrize('at', [pytest.param(2, marks=pytest.mark.slow), 3])
def test_plateau_goes_on_counting(tmp_path, at):
    """It reduced once before, and does again, beyond the end of before."""
    expected = toy.train(tmp_path / 'whole', **changes(7, [PLATEAU], SCORES))
    toy.train(tmp_path / 'a', **changes(3, [PLATEAU], SCORES))
    trace = resume(
        tmp_path / 'b',
        # It was written before its validation, which is done first.
        tmp_path / 'a' / f'epoch_{at}.pth',
        **changes(7, [PLATEAU], SCORES[at - 1 :]),
    )
    whole = rates(expected)
    assert len(set(whole)) == 3
    assert rates(trace) == whole[-len(rates(trace)) :]
