"""What the runner saves, and what it makes of the checkpoints it is given."""

import copy
import errno
import os
import re
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import run_on_ranks

EVERY_STEP = dict(
    checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False),
    logger=dict(type='LoggerHook', interval=1),
)
EMA = dict(type='EMAHook', momentum=0.5)


@pytest.fixture
def trained(tmp_path):
    """Folder of a training that ended."""
    toy.train(tmp_path / 'trained')
    return tmp_path / 'trained'


def edit(path, change):
    """Change a checkpoint; returns its path."""
    checkpoint = torch.load(path, weights_only=False)
    change(checkpoint)
    torch.save(checkpoint, path)
    return str(path)


def start(tmp_path, **changes):
    """A runner on which a training was begun, up to loading."""
    runner = toy.build(tmp_path / 'new', **changes)
    runner.train()
    return runner


# Saving -------------------------------------------------------------------


def test_position(tmp_path):
    toy.train(tmp_path, default_hooks=EVERY_STEP)
    for iteration, (epoch, batch) in {
        4: (0, 4),
        6: (0, 6),
        7: (1, 1),
        18: (2, 6),
    }.items():
        meta = torch.load(
            tmp_path / f'iter_{iteration}.pth', weights_only=False
        )['meta']
        assert (meta['iter'], meta['epoch'], meta['batch_in_epoch']) == (
            iteration,
            epoch,
            batch,
        )
        assert (meta['batches_per_epoch'], meta['batch_size']) == (6, 2)
        assert (meta['world_size'], meta['sampler_seed']) == (1, 3)
        assert meta['pending_val'] is False
        assert len(meta['rng_states']) == 1


def test_end_of_an_epoch_is_the_beginning_of_the_next(trained):
    meta = torch.load(trained / 'epoch_2.pth', weights_only=False)['meta']
    assert (meta['iter'], meta['epoch'], meta['batch_in_epoch']) == (12, 2, 0)


def test_checkpoints_run_no_code_when_read(trained):
    from mmengine.runner.checkpoint import get_torch_safe_globals

    with torch.serialization.safe_globals(get_torch_safe_globals()):
        checkpoint = torch.load(trained / 'epoch_1.pth', weights_only=True)
    assert checkpoint['meta']['epoch'] == 1


def test_arguments_are_not_changed(tmp_path):
    runner = start(tmp_path)
    meta = dict(epoch=3, iter=18, mine=1)
    before = copy.deepcopy(meta)
    runner.save_checkpoint(str(tmp_path), 'a.pth', meta=meta)
    assert meta == before
    saved = torch.load(tmp_path / 'a.pth', weights_only=False)['meta']
    assert saved['mine'] == 1


def test_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    runner = start(tmp_path)
    folder = tmp_path / 'new'
    before = {p.name: p.read_bytes() for p in folder.glob('*.pth')}
    fsync = os.fsync

    def full(descriptor):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(
        OSError,
        match=(
            r'epoch_3.pth could not be written .No space left on device.; ear'
        ),
    ) as info:
        runner.save_checkpoint(str(folder), 'epoch_3.pth')
    assert info.value.errno == errno.ENOSPC
    monkeypatch.setattr(os, 'fsync', fsync)
    assert {p.name: p.read_bytes() for p in folder.glob('*.pth')} == before
    assert not [p for p in folder.iterdir() if '.tmp' in p.name]


def two_save_one():
    """Only rank 0 is asked to save, as some hooks do."""
    from mmengine.dist import get_rank

    import mmext.engine.checkpoint.exchange as module

    module._RNG_TIMEOUTS_S = {False: 0.2, True: 0.2}
    runner = toy.build(
        os.environ['FOLDER'], launcher='pytorch', experiment_name='two'
    )
    runner.train()
    if get_rank() == 0:
        runner.save_checkpoint(os.environ['FOLDER'], 'alone.pth')


@pytest.mark.xdist_group('processes')
def test_states_of_two_processes(tmp_path, monkeypatch):
    monkeypatch.setenv('FOLDER', str(tmp_path))
    ranks = run_on_ranks(two_save_one, 2, tmp_path / 'out')
    assert ranks.wait() == [0, 0], ranks.output()
    states = torch.load(tmp_path / 'epoch_1.pth', weights_only=False)['meta'][
        'rng_states'
    ]
    assert [set(state) for state in states] == [
        {'python', 'numpy', 'torch'}
    ] * 2
    states = torch.load(tmp_path / 'alone.pth', weights_only=False)['meta'][
        'rng_states'
    ]
    assert states[1] is None
    assert 'without the states of rank 1' in ranks.output()


# Loading -------------------------------------------------------------------


def test_load_from(tmp_path, trained):
    runner = start(
        tmp_path,
        load_from=str(trained / 'epoch_3.pth'),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.0)),
    )
    weights = torch.load(trained / 'epoch_3.pth', weights_only=False)[
        'state_dict'
    ]
    for name, value in runner.model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert runner.iter == 18  # from the beginning


def test_load_from_another_number_of_classes(tmp_path, trained):
    runner = toy.build(tmp_path / 'new', model=dict(type='ToyModel', width=4))
    path = edit(
        trained / 'epoch_3.pth',
        lambda c: c['state_dict'].update({'more': torch.zeros(1)}),
    )
    runner.load_checkpoint(path)
    (log,) = (tmp_path / 'new').rglob('*.log')
    (line,) = (t for t in log.read_text().splitlines() if 'in part' in t)
    assert re.search(
        r'1 of 2 entries of the model; 1 have another shape \(linear.weight: '
        r'torch.Size\(\[2, 3\]\) in .*; 1 of the checkpoint are not in the '
        r'model \(more\)\. What was not loaded keeps',
        line,
    )


def test_load_from_another_model(tmp_path, trained):
    path = edit(
        trained / 'epoch_3.pth',
        lambda c: c.update(
            state_dict={f'other.{i}': torch.zeros(1) for i in range(3)}
        ),
    )
    with pytest.raises(ValueError, match='is not of this model: loaded 0 of'):
        start(tmp_path, load_from=path)


def test_strict(tmp_path, trained):
    runner = toy.build(tmp_path, model=dict(type='ToyModel', width=4))
    with pytest.raises(ValueError, match='must be of the same model'):
        runner.load_checkpoint(str(trained / 'epoch_3.pth'), strict=True)


# Resuming ------------------------------------------------------------------


def test_auto_starts_from_the_beginning(tmp_path):
    trace = toy.train(tmp_path, resume=True)
    (log,) = tmp_path.rglob('*.log')
    assert 'No checkpoint to resume from in' in log.read_text()
    assert 'starting from the beginning' in log.read_text()
    assert trace[0]['iter'] == 1


def test_auto_starts_from_other_weights(tmp_path, trained):
    changes = dict(load_from=str(trained / 'epoch_3.pth'))
    plain = toy.train(tmp_path / 'a', **changes)
    auto = toy.train(tmp_path / 'b', resume='auto', **changes)
    assert auto == plain
    # and the second time, goes on
    toy.build(tmp_path / 'b', resume='auto', **changes).train()
    lines = toy.read_trace(tmp_path / 'b' / 'trace.0')
    assert len(toy.steps(lines)) == 18


def test_log_history_goes_on(tmp_path, trained):
    runner = toy.build(
        tmp_path, resume=True, load_from=str(trained / 'epoch_1.pth')
    )
    runner.train()
    values, _ = runner.message_hub.get_scalar('train/loss').data
    expected = [
        line['loss'] for line in toy.steps(toy.read_trace(trained / 'trace.0'))
    ]
    assert values.tolist() == pytest.approx(expected)


def test_only_damaged_checkpoints_are_an_error(tmp_path):
    """Starting anew would rotate them away."""
    toy.train(tmp_path, train_cfg=dict(by_epoch=True, max_epochs=2))
    files = sorted(tmp_path.glob('epoch_*.pth'))
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r'All checkpoints in .* are damaged'):
        toy.train(tmp_path, resume=True)
    assert all(path.stat().st_size == 2000 for path in files)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda c: c.pop('optimizer'), 'has no optimizer; set load_from'),
        (
            lambda c: c.clear() or c.update(linear=torch.zeros(1)),
            'has no meta and no message_hub and no optimizer',
        ),
        (
            lambda c: c['state_dict'].pop('linear.bias'),
            'must be of the same model to resume',
        ),
        (lambda c: c['param_schedulers'].pop(), '1 schedulers in the checkp'),
    ],
)
def test_rejects_to_resume(tmp_path, trained, change, message):
    path = edit(trained / 'epoch_1.pth', change)
    with pytest.raises(ValueError, match=message):
        start(tmp_path, resume=True, load_from=path)


def test_other_batches_from_the_end_of_an_epoch(tmp_path, trained):
    runner = start(
        tmp_path,
        load_from=str(trained / 'epoch_1.pth'),
        resume=True,
        train_dataloader=toy.loader(batch_size=3),
    )
    assert (runner.epoch, runner.iter) == (3, 6 + 4 + 4)


def test_checkpoints_of_mmengines_runner(tmp_path):
    changes = dict(default_hooks=EVERY_STEP)
    expected = toy.train(tmp_path / 'a', runner_type='Runner', **changes)
    for iteration in (4, 6, 12):
        folder = tmp_path / str(iteration)
        path = str(tmp_path / 'a' / f'iter_{iteration}.pth')
        trace = toy.train(folder, resume=True, load_from=path, **changes)
        assert toy.steps(trace) == toy.steps(expected)[iteration:]
        assert trace[-1] == expected[-1]


def test_other_loops_are_resumed_by_epoch(tmp_path):
    from mmengine.runner import EpochBasedTrainLoop

    class OwnLoop(EpochBasedTrainLoop):
        pass

    own = dict(train_cfg=dict(type=OwnLoop, max_epochs=3))
    toy.train(tmp_path / 'a', **own)
    path = str(tmp_path / 'a' / 'epoch_2.pth')
    runner = start(tmp_path, resume=True, load_from=path, **own)
    assert type(runner.train_loop) is OwnLoop
    assert runner.iter == 18


def test_finished_training_has_nothing_to_do(trained):
    lines = (trained / 'trace.0').read_text().splitlines()
    toy.train(trained, resume=True)
    after = (trained / 'trace.0').read_text().splitlines()
    assert len(after) == len(lines) + 1  # the weights, once more
    assert after[-1] == lines[-1]
    assert Path(trained, 'epoch_3.pth').is_file()
