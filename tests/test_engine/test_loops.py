"""A run that was interrupted is, step by step, the run that was not."""

import copy
import signal

import pytest
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler, DataLoader

from mmext.engine import (
    ResumableEpochBasedTrainLoop,
    ResumableIterBasedTrainLoop,
)
from mmext.engine.loops import (
    make_skippable,
    skip_batches,
)

MODEL = dict(type='ToyModel', noise=0.3)  # draws random numbers
EPOCHS = dict(type='EpochBasedTrainLoop', max_epochs=3, val_interval=2)
ITERS = dict(type='IterBasedTrainLoop', max_iters=15, val_interval=4)
EMA = dict(type='EMAHook', momentum=0.1)


def hooks(interval, by_epoch=False):
    return dict(
        checkpoint=dict(
            type='CheckpointHook', interval=interval, by_epoch=by_epoch
        ),
        logger=dict(type='LoggerHook', interval=1),
    )


def assert_same(trace, expected, first=1):
    """Steps from ``first`` on, done once or again, and the result."""
    last = {line['iter']: line for line in toy.steps(trace)}
    assert list(last.values()) == toy.steps(expected)
    assert trace[-1] == expected[-1]
    assert 'weights' in trace[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    'kills', [[2], [3], [6], [7], [12], [13], [18], [5, 8, 16]]
)
def test_epochs_from_any_step(tmp_path, kills):
    changes = dict(
        train_cfg=EPOCHS,
        model=MODEL,
        default_hooks=hooks(1),
        custom_hooks=[EMA],
    )
    expected = toy.train(tmp_path / 'a', **changes)
    trace = toy.interrupted(tmp_path / 'b', kills, **changes)
    assert len(toy.steps(trace)) == 18  # no step is done twice
    assert_same(trace, expected)


@pytest.mark.parametrize('kill', [7, 14])
def test_epochs_from_the_end_of_an_epoch(tmp_path, kill):
    """Also when a validation lay between checkpoint and kill."""
    changes = dict(train_cfg=EPOCHS, model=MODEL, default_hooks=hooks(1, True))
    expected = toy.train(tmp_path / 'a', **changes)
    assert_same(toy.interrupted(tmp_path / 'b', [kill], **changes), expected)


@DATA_SAMPLERS.register_module(force=True)
class UnequalBatches(BatchSampler):
    """Five batches of the twelve samples, the first of one."""

    def __iter__(self):
        indices = list(self.sampler)
        yield indices[:1]
        yield from (indices[i : i + 3] for i in range(1, len(indices), 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    'loader',
    [
        toy.loader(),
        toy.loader(sampler='InfiniteSampler'),
        toy.loader(batch_sampler=dict(type='UnequalBatches', drop_last=False)),
    ],
    ids=['default', 'infinite', 'unequal'],
)
@pytest.mark.parametrize('kills', [[1], [4], [6], [11], [12], [13], [2, 9]])
def test_iterations_from_any_step(tmp_path, loader, kills):
    changes = dict(
        train_cfg=ITERS,
        model=MODEL,
        default_hooks=hooks(1),
        train_dataloader=loader,
        log_processor=dict(by_epoch=False),
    )
    expected = toy.train(tmp_path / 'a', **changes)
    trace = toy.interrupted(tmp_path / 'b', kills, **changes)
    assert len(toy.steps(trace)) == 15
    assert_same(trace, expected)


@pytest.mark.parametrize('train_cfg', [EPOCHS, ITERS])
def test_skipped_samples_are_not_read(tmp_path, train_cfg):
    log = tmp_path / 'read'
    changes = dict(
        train_cfg=train_cfg,
        default_hooks=hooks(1),
        train_dataloader=toy.loader(log=str(log)),
    )
    with pytest.raises(toy.Killed):
        toy.train(
            tmp_path, custom_hooks=[dict(type='KillHook', at=9)], **changes
        )
    before = log.read_text().splitlines()
    assert len(before) == 18
    toy.train(tmp_path, resume=True, **changes)
    after = log.read_text().splitlines()[18:]
    total = 36 if train_cfg is EPOCHS else 30
    assert len(after) == total - 18
    # the second epoch has each sample once, over both runs
    assert sorted(map(int, before[12:] + after[:6])) == list(range(12))


@pytest.mark.xdist_group('processes')
def test_worker_processes(tmp_path):
    """Their own random numbers are not restored; these data need none."""
    changes = dict(
        train_cfg=EPOCHS,
        default_hooks=hooks(1),
        train_dataloader=toy.loader(num_workers=1, persistent_workers=True),
    )
    expected = toy.train(
        tmp_path / 'a', **{**changes, 'train_dataloader': toy.loader()}
    )
    cfg = toy.traced(tmp_path / 'trace', toy.config(**changes))
    cfg['custom_hooks'] += [
        dict(
            type='StrikeHook',
            signal='SIGKILL',
            at=8,
            once=str(tmp_path / 'struck'),
        )
    ]
    path = toy.write(tmp_path / 'cfg.py', cfg)
    for code in (-signal.SIGKILL, 0):
        ranks = start_ranks(
            [path, '--resume', '--work-dir', tmp_path / 'b'],
            1,
            tmp_path / 'out',
        )
        assert ranks.wait() == [code], ranks.output()
    trace = toy.read_trace(tmp_path / 'trace.0')
    # step 8 was not saved when the process was killed after it
    assert [line['iter'] for line in toy.steps(trace)][7:9] == [8, 9]
    assert_same(trace, expected)


@pytest.mark.parametrize(
    'train_cfg', [EPOCHS, pytest.param(ITERS, marks=pytest.mark.slow)]
)
def test_without_interruption_it_is_mmengines_loop(tmp_path, train_cfg):
    """The same steps, validations and weights as in MMEngine's runner."""
    changes = dict(
        train_cfg=train_cfg,
        default_hooks=hooks(1),
        model=dict(type='ToyModel'),
    )
    ours = toy.train(tmp_path / 'a', **changes)
    runner_type = toy.config()['runner_type']
    assert runner_type != 'Runner'
    theirs = toy.train(tmp_path / 'b', runner_type='Runner', **changes)
    assert ours == theirs


def test_validation_leaves_the_random_numbers_alone(tmp_path):
    changes = dict(model=MODEL, default_hooks=hooks(100))
    with_val = toy.train(
        tmp_path / 'a', train_cfg={**EPOCHS, 'val_interval': 1}, **changes
    )
    without = toy.train(
        tmp_path / 'b', train_cfg={**EPOCHS, 'val_interval': 9}, **changes
    )
    assert toy.steps(with_val) == toy.steps(without)
    assert with_val != without


def test_runner_uses_them_for_any_config(tmp_path):
    for name, train_cfg, kind in (
        ('a', EPOCHS, ResumableEpochBasedTrainLoop),
        ('b', ITERS, ResumableIterBasedTrainLoop),
        ('c', dict(by_epoch=True, max_epochs=1), ResumableEpochBasedTrainLoop),
        ('d', dict(by_epoch=False, max_iters=1), ResumableIterBasedTrainLoop),
        (
            'e',
            dict(type='mmext.ResumableIterBasedTrainLoop', max_iters=1),
            ResumableIterBasedTrainLoop,
        ),
    ):
        before = copy.deepcopy(train_cfg)
        loop = toy.build(tmp_path / name, train_cfg=train_cfg).train_loop
        assert type(loop) is kind
        assert train_cfg == before


def test_is_val_due_after(tmp_path):
    loop = toy.build(
        tmp_path / 'a',
        train_cfg={**ITERS, 'val_begin': 5, 'dynamic_intervals': [(9, 2)]},
    ).train_loop
    due = [n for n in range(1, 16) if loop.is_val_due_after(n)]
    trace = toy.train(
        tmp_path / 'b',
        train_cfg={**ITERS, 'val_begin': 5, 'dynamic_intervals': [(9, 2)]},
    )
    assert due == [line['val'] for line in trace if 'val' in line]
    loop = toy.build(tmp_path / 'c', train_cfg=EPOCHS).train_loop
    assert not loop.is_val_due_after(12)


def test_early_stop_is_obeyed(tmp_path):
    runner = toy.build(
        tmp_path,
        train_cfg={**EPOCHS, 'val_interval': 1},
        custom_hooks=[
            dict(
                type='EarlyStoppingHook',
                monitor='mean',
                rule='greater',
                patience=1,
            )
        ],
        val_evaluator=dict(type='ToyMetric', scores=[2, 1, 1]),
    )
    runner.train()
    assert runner.epoch == 2


def test_data_can_begin_anew(tmp_path):
    log = tmp_path / 'read'
    changes = dict(
        train_cfg={**ITERS, 'fast_forward_on_resume': True},
        train_dataloader=toy.loader(log=str(log)),
        default_hooks=hooks(1),
    )
    toy.interrupted(tmp_path, [8], **changes)
    read = log.read_text().splitlines()
    assert read[16:28] == read[:12]


def test_skip_batches_rejects_no_data():
    loader = DataLoader([], batch_sampler=[])
    with pytest.raises(ValueError, match='must have batches, got none'):
        skip_batches(loader, make_skippable(loader), 2)


def test_loader_without_batches():
    loader = DataLoader(range(4), batch_size=None, sampler=[3, 1, 0, 2])
    make_skippable(loader).skip_next(1)
    assert list(loader) == [1, 0, 2]


def test_seed_that_was_drawn_is_resumed(tmp_path):
    """Without a seed in the config, the order still goes on."""
    log = tmp_path / 'read'
    changes = dict(
        train_cfg=EPOCHS,
        randomness=dict(seed=None),
        train_dataloader=toy.loader(log=str(log)),
        default_hooks=hooks(1),
    )
    toy.interrupted(tmp_path, [9], **changes)
    read = list(map(int, log.read_text().splitlines()))
    for epoch in range(3):
        assert sorted(read[12 * epoch : 12 * epoch + 12]) == list(range(12))
