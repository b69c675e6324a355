"""Resumed within a window of accumulated gradients: as if not interrupted."""

import pytest
import torch
from helpers import toy_training as toy

SLOW = pytest.mark.slow
EMA = dict(type='EMAHook', momentum=0.3)
MODEL = dict(type='ToyModel', noise=0.3, norm='BN')


def hooks(interval, by_epoch=False, **kwargs):
    return dict(
        checkpoint=dict(
            type='CheckpointHook',
            interval=interval,
            by_epoch=by_epoch,
            **kwargs,
        ),
        logger=dict(type='LoggerHook', interval=1),
    )


def wrapper(counts, **kwargs):
    optimizer = dict(type='Adam', lr=0.05)
    return dict(optimizer=optimizer, accumulative_counts=counts, **kwargs)


def compare(tmp_path, kills, last='iter_18.pth', **changes):
    """Run with and without interruptions; checkpoints must be the same."""
    expected = toy.train(tmp_path / 'a', **changes)
    trace = toy.interrupted(tmp_path / 'b', kills, **changes)
    again = {line['iter']: line for line in toy.steps(trace)}
    assert list(again.values()) == toy.steps(expected)
    assert trace[-1] == expected[-1]
    assert toy.differences(tmp_path / 'a' / last, tmp_path / 'b' / last) == []


@pytest.mark.parametrize(
    ('counts', 'kills'),
    [
        pytest.param(2, [3], marks=SLOW),
        # One batch after a window.
        pytest.param(3, [2, 7], marks=SLOW),
        (4, [6, 10]),  # the end of an epoch; the window goes on after it
        (4, [17]),  # the last window is shorter
        pytest.param(5, [1, 4, 6, 16, 18], marks=SLOW),
        pytest.param(18, [9, 12], marks=SLOW),
        # Longer than the training.
        pytest.param(100, [5, 13], marks=SLOW),
    ],
)
@pytest.mark.parametrize('by_epoch', [True, pytest.param(False, marks=SLOW)])
def test_from_any_step_of_a_window(tmp_path, counts, kills, by_epoch):
    train_cfg = dict(by_epoch=True, max_epochs=3, val_interval=1)
    if not by_epoch:
        train_cfg = dict(by_epoch=False, max_iters=18, val_interval=4)
    compare(
        tmp_path,
        kills,
        train_cfg=train_cfg,
        model=MODEL,
        custom_hooks=[EMA],
        default_hooks=hooks(1),
        optim_wrapper=wrapper(counts, clip_grad=dict(max_norm=0.5)),
    )


@pytest.mark.parametrize('kill', [7, pytest.param(13, marks=SLOW)])
def test_from_the_end_of_an_epoch_that_ends_in_a_window(tmp_path, kill):
    compare(
        tmp_path,
        [kill],
        last='epoch_3.pth',
        model=MODEL,
        custom_hooks=[EMA],
        default_hooks=hooks(1, True, save_best='mean', rule='less'),
        optim_wrapper=wrapper(4),
    )
    saved = torch.load(tmp_path / 'a' / 'epoch_1.pth', weights_only=False)
    window = saved['meta']['accumulation']['wrappers']['']
    assert (window['open'], window['counts']) == (2, 4)


def test_in_mixed_precision(tmp_path):
    compare(
        tmp_path,
        [3, 9],
        model=MODEL,
        default_hooks=hooks(1),
        optim_wrapper=wrapper(4, type='AmpOptimWrapper'),
    )


def test_no_gradients_are_saved_between_windows(tmp_path):
    toy.train(tmp_path, default_hooks=hooks(1), optim_wrapper=wrapper(3))
    for step in (2, 3):
        meta = torch.load(tmp_path / f'iter_{step}.pth', weights_only=False)[
            'meta'
        ]
        assert ('gradients' in meta['accumulation']) == (step == 2)


def test_mmengine_does_not_say_that_gradients_are_lost(tmp_path):
    toy.interrupted(
        tmp_path, [5], default_hooks=hooks(1), optim_wrapper=wrapper(4)
    )
    text = ''.join(log.read_text() for log in tmp_path.rglob('*.log'))
    assert 'lost' not in text
    # that of MMEngine's runner, from the same checkpoint, does
    toy.train(
        tmp_path / 'theirs',
        runner_type='Runner',
        resume=True,
        load_from=str(tmp_path / 'iter_5.pth'),
        optim_wrapper=wrapper(4),
    )
    text = ''.join(p.read_text() for p in tmp_path.rglob('*.log'))
    assert 'gradient of some iterations is lost' in text


@pytest.mark.parametrize(
    ('maker', 'judge'),
    [
        (1, 1),
        *(
            pytest.param(*pair, marks=SLOW)
            for pair in ((2, 2), (3, 2), (1, 4), (5, 1))
        ),
    ],
)
def test_several_optimizers(tmp_path, maker, judge):
    compare(
        tmp_path,
        [3, 7, 13],
        model=dict(type='Pair'),
        custom_hooks=[EMA],
        default_hooks=hooks(1),
        param_scheduler=[dict(type='ExponentialLR', gamma=0.9)],
        optim_wrapper=dict(
            constructor='PairConstructor',
            counts=dict(maker=maker, judge=judge),
        ),
    )
