"""Real signals to real processes, one and two of them."""

import os
import re
import signal
import threading
import uuid
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.config import Config
from mmengine.registry import RUNNERS

from mmext.engine import GracefulExit, GracefulStopHook

SLOW = pytest.mark.slow
MODEL = dict(type='ToyModel', noise=0.3)
EMA = dict(type='EMAHook', momentum=0.5)


def strike(name, at, folder, **kwargs):
    """A signal after a step, or (negative) at the n-th time of a stage."""
    return dict(
        type='StrikeHook',
        signal=name,
        at=at,
        once=str(folder / 'struck'),
        **kwargs,
    )


def run(folder, world_size, *hooks, codes, **changes):
    """Train with some hooks in addition; checks the exit codes."""
    options = dict(model=MODEL, custom_hooks=[EMA, *hooks])
    cfg = toy.traced(folder / 'trace', toy.config(**{**options, **changes}))
    cfg.update(work_dir=str(folder / 'work'), resume='auto')
    if world_size > 1:
        path = toy.write(folder / 'cfg.py', cfg)
        ranks = start_ranks([path], world_size, folder / 'out')
        assert ranks.wait() == codes, ranks.output()
        return
    # The signal is as real in the process of the test.
    code = 0
    cfg['experiment_name'] = uuid.uuid4().hex
    try:
        RUNNERS.build(Config(cfg)).train()
    except GracefulExit as stop:
        code = stop.code
    assert [code] == codes


def steps(folder, rank=0):
    return [
        line['iter']
        for line in toy.steps(toy.read_trace(folder / f'trace.{rank}'))
    ]


def checkpoints(folder):
    return sorted(path.name for path in (folder / 'work').glob('*.pth'))


def assert_as_without_signal(tmp_path, folder, world_size, **changes):
    """No step is lost, none is done twice, and the result is the same."""
    plain = tmp_path / 'plain'
    plain.mkdir()
    run(plain, world_size, codes=[0] * world_size, **changes)
    for rank in range(world_size):
        ours = toy.read_trace(folder / f'trace.{rank}')
        theirs = toy.read_trace(plain / f'trace.{rank}')
        assert toy.steps(ours) == toy.steps(theirs)
        assert ours[-1] == theirs[-1]


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize(('name', 'code'), [('SIGTERM', 143), ('SIGINT', 130)])
def test_one_process(tmp_path, name, code):
    folder = tmp_path / 'run'
    folder.mkdir()
    cfg = toy.traced(
        folder / 'trace',
        toy.config(model=MODEL, custom_hooks=[EMA, strike(name, 8, folder)]),
    )
    path = toy.write(folder / 'cfg.py', cfg)
    args = [path, '--resume', '--work-dir', folder / 'work']
    ranks = start_ranks(args, 1, folder / 'out')
    assert ranks.wait() == [code], ranks.output()
    assert steps(folder) == list(range(1, 9))
    assert checkpoints(folder) == ['epoch_1.pth', 'stopped_iter_8.pth']
    output = ranks.output()
    assert 'starting from the beginning' in output
    assert f'{name}: stopping after this step, with a checkpoint' in output
    assert f'{name}: stopped after iteration 8 (of 18), saved' in output
    assert 'with --resume' in output
    assert 'Traceback' not in output
    ranks = start_ranks(args, 1, folder / 'out')
    assert ranks.wait() == [0], ranks.output()
    assert re.search('Resuming from .*stopped_iter_8.pth', ranks.output())
    assert_as_without_signal(tmp_path, folder, 1)


@pytest.mark.slow
@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize('rank', [0, 1])
def test_two_processes_of_which_one_is_signalled(tmp_path, rank):
    folder = tmp_path / 'run'
    folder.mkdir()
    run(folder, 2, strike('SIGTERM', 4, folder, rank=rank), codes=[143] * 2)
    assert steps(folder, 0) == steps(folder, 1)
    assert len(steps(folder)) in (4, 5, 6)
    stop = f'stopped_iter_{len(steps(folder))}.pth'
    assert stop in checkpoints(folder)
    run(folder, 2, codes=[0, 0])
    assert_as_without_signal(tmp_path, folder, 2)


@pytest.mark.xdist_group('processes')
def test_two_processes_of_which_both_are_signalled(tmp_path):
    """At any time; here, once the first step is done."""
    slow = dict(model=dict(type='ToyModel', noise=0.3, seconds=0.02))
    cfg = toy.traced(tmp_path / 'trace', toy.config(**slow))
    path = toy.write(tmp_path / 'cfg.py', cfg)
    ranks = start_ranks(
        [path, '--work-dir', tmp_path / 'work'], 2, tmp_path / 'out'
    )
    ranks.wait_for(lambda: (tmp_path / 'trace.0').exists())
    ranks.signal(signal.SIGINT)
    assert ranks.wait() == [130, 130]
    assert steps(tmp_path, 0) == steps(tmp_path, 1)


@pytest.mark.xdist_group('processes')
def test_before_the_first_step(tmp_path):
    hook = strike('SIGTERM', -1, tmp_path, stage='before_train_epoch')
    run(tmp_path, 1, hook, codes=[143])
    assert checkpoints(tmp_path) == ['stopped_iter_1.pth']


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize(
    ('world_size', 'stage', 'at', 'by_epoch'),
    [
        (1, 'before_val_epoch', -1, True),
        (1, 'after_val_iter', -1, False),
        (1, 'after_val_iter', -2, True),
        (1, 'after_val_epoch', -1, True),
        (2, 'after_val_iter', -1, True),
        pytest.param(2, 'before_val_epoch', -1, False, marks=SLOW),
        pytest.param(2, 'after_val_iter', -2, False, marks=SLOW),
        pytest.param(2, 'after_val_epoch', -1, True, marks=SLOW),
    ],
)
def test_during_a_validation(tmp_path, world_size, stage, at, by_epoch):
    """It is left, with the trained weights, and done again."""
    folder = tmp_path / 'run'
    folder.mkdir()
    changes = dict(
        val_dataloader=toy.loader(size=4 * world_size, shuffle=False),
        train_dataloader=toy.loader(size=8 * world_size),
    )
    if not by_epoch:
        changes |= dict(
            train_cfg=dict(by_epoch=False, max_iters=12, val_interval=4),
            log_processor=dict(by_epoch=False),
            # Of epochs, which the preflight of a training refuses.
            param_scheduler=None,
        )
    run(
        folder,
        world_size,
        strike('SIGTERM', at, folder, stage=stage),
        codes=[143] * world_size,
        **changes,
    )
    # With two, they may have begun the evaluation, and then a step or two.
    done = steps(folder)
    assert done == list(range(1, len(done) + 1))
    assert 4 <= len(done) <= (4 if world_size == 1 else 6)
    left = stage != 'after_val_epoch'
    if world_size == 1:
        saved = torch.load(
            folder / 'work' / 'stopped_iter_4.pth', weights_only=False
        )
        assert saved['meta']['pending_val'] == left
    run(folder, world_size, codes=[0] * world_size, **changes)
    lines = toy.read_trace(folder / 'trace.0')
    validations = [line['val'] for line in lines if 'val' in line]
    assert sorted(set(validations)) == [4, 8, 12]
    if world_size == 1:
        assert validations.count(4) == 1 + left
    assert_as_without_signal(tmp_path, folder, world_size, **changes)


@pytest.mark.xdist_group('processes')
def test_pending_validation_after_a_step(tmp_path):
    """A stop between a step and the validation that follows it."""
    changes = dict(train_cfg=dict(by_epoch=False, max_iters=6, val_interval=3))
    run(tmp_path, 1, strike('SIGTERM', 3, tmp_path), codes=[143], **changes)
    run(tmp_path, 1, codes=[0], **changes)
    lines = toy.read_trace(tmp_path / 'trace.0')
    assert [line['val'] for line in lines if 'val' in line] == [3, 6]
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize(
    ('world_size', 'stage', 'at'),
    [
        (1, 'after_train_iter', 5),
        (1, 'after_val_iter', -1),
        (2, 'after_train_iter', 5),
        (2, 'after_val_iter', -1),
    ],
)
def test_stops_while_gradients_are_accumulated(
    tmp_path, world_size, stage, at
):
    """Also in a validation; the gradients of each process are saved."""
    changes = dict(
        optim_wrapper=dict(
            accumulative_counts=7, optimizer=dict(type='Adam', lr=0.05)
        ),
        train_dataloader=toy.loader(size=10 * world_size),
        val_dataloader=toy.loader(size=4 * world_size, shuffle=False),
    )
    folder = tmp_path / 'run'
    folder.mkdir()
    hook = strike('SIGTERM', at, folder, stage=stage)
    run(folder, world_size, hook, codes=[143] * world_size, **changes)
    # With two, they may be a step or two further.
    assert 5 <= steps(folder)[-1] <= (5 if world_size == 1 else 7)
    run(folder, world_size, codes=[0] * world_size, **changes)
    assert_as_without_signal(tmp_path, folder, world_size, **changes)
    last = [
        tmp_path / name / 'work' / 'epoch_3.pth' for name in ('plain', 'run')
    ]
    assert toy.differences(*last) == []


@pytest.mark.xdist_group('processes')
def test_signal_of_the_whole_group_spares_data_loading(tmp_path):
    """As torchrun and batch systems send it: workers get it, too."""
    changes = dict(train_dataloader=toy.loader(num_workers=1, seconds=0.02))
    cfg = toy.traced(tmp_path / 'trace', toy.config(**changes))
    path = toy.write(tmp_path / 'cfg.py', cfg)
    ranks = start_ranks(
        [path, '--work-dir', tmp_path / 'work'],
        1,
        tmp_path / 'out',
        own_group=True,
    )
    ranks.wait_for(
        lambda: (
            len(Path(f'{ranks.out}.0').read_text().split('Epoch(train)')) > 3
        )
    )
    os.killpg(ranks.pids[0], signal.SIGTERM)
    assert ranks.wait() == [143], ranks.output()
    assert 'Traceback' not in ranks.output()
    assert any('stopped' in name for name in checkpoints(tmp_path))


@pytest.mark.xdist_group('processes')
def test_second_signal_stops_at_once(tmp_path, monkeypatch):
    where = 'mmext.engine.hooks.graceful_stop'
    monkeypatch.setattr(f'{where}._SAME_SIGNAL_S', 0.0)
    hooks = [
        strike('SIGINT', 2, tmp_path),
        strike('SIGINT', 2, tmp_path / 'again'),
    ]
    (tmp_path / 'again').mkdir()
    cfg = toy.config(custom_hooks=hooks, work_dir=str(tmp_path / 'work'))
    path = toy.write(tmp_path / 'cfg.py', cfg)
    ranks = start_ranks([path], 1, tmp_path / 'out')
    assert ranks.wait() == [130], ranks.output()
    assert 'SIGINT again: stopped at once' in ranks.output()
    assert checkpoints(tmp_path) == []


@pytest.mark.xdist_group('processes')
def test_second_signal_of_the_same_moment_does_not_count(tmp_path):
    (tmp_path / 'again').mkdir()
    run(
        tmp_path,
        1,
        strike('SIGINT', 2, tmp_path),
        strike('SIGTERM', 2, tmp_path / 'again'),
        codes=[130],
    )
    assert checkpoints(tmp_path) == ['stopped_iter_2.pth']


@pytest.mark.xdist_group('processes')
def test_one_stop_checkpoint_is_kept(tmp_path):
    for at in (2, 3):
        (tmp_path / str(at)).mkdir()
        run(
            tmp_path, 1, strike('SIGTERM', at, tmp_path / str(at)), codes=[143]
        )
    assert checkpoints(tmp_path) == ['stopped_iter_3.pth']
    pointer = (tmp_path / 'work' / 'last_checkpoint').read_text()
    assert Path(pointer).name == 'stopped_iter_3.pth'


@pytest.mark.xdist_group('processes')
def test_other_signals_can_be_chosen(tmp_path):
    hook = dict(type='mmext.GracefulStopHook', signals=['SIGUSR1'])
    run(
        tmp_path,
        1,
        hook,
        strike('SIGUSR1', 2, tmp_path),
        codes=[128 + signal.SIGUSR1],
    )
    assert checkpoints(tmp_path) == ['stopped_iter_2.pth']


@pytest.mark.parametrize('error', [GracefulExit, ValueError])
def test_handlers_are_given_back(tmp_path, error):
    """When a training stops, and when it fails."""
    before = signal.getsignal(signal.SIGTERM)
    broken = 5 if error is ValueError else None
    runner = toy.build(
        tmp_path,
        custom_hooks=[strike('SIGTERM', 2, tmp_path)][: broken is None],
        train_dataloader=toy.loader(broken=broken),
    )
    with pytest.raises(error):
        runner.train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_trains_without_signals(tmp_path):
    runner = toy.build(tmp_path)
    thread = threading.Thread(target=runner.train)
    handler = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join(60)
    assert runner.iter == 18
    assert signal.getsignal(signal.SIGTERM) == handler


def test_works_with_mmengines_runner_and_loop(tmp_path):
    """Then without the exact position within the epoch."""
    runner = toy.build(
        tmp_path,
        runner_type='Runner',
        custom_hooks=[
            dict(type='mmext.GracefulStopHook'),
            strike('SIGTERM', 2, tmp_path),
        ],
    )
    with pytest.raises(GracefulExit):
        runner.train()
    meta = torch.load(tmp_path / 'stopped_iter_2.pth', weights_only=False)[
        'meta'
    ]
    assert (meta['iter'], meta['epoch']) == (2, 0)


def test_rejects():
    with pytest.raises(ValueError, match=r"names of signals, got \['SIGNO'\]"):
        GracefulStopHook(signals=['SIGNO'])
