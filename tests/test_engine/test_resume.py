"""What the runner saves, and what it makes of the checkpoints it is given."""

import copy
import os
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from helpers.torch_versions import needs_torch
from helpers.toy_ranks import run_on_ranks
from mmengine.logging import MessageHub

EVERY_STEP = dict(
    checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False),
    logger=dict(type='LoggerHook', interval=1),
)


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


@needs_torch(2, 4, why='Counter with weights_only')
def test_checkpoints_are_plain_data(trained):
    """PyTorch's default reader takes them, as publish_model.py of mmdet."""
    checkpoint = torch.load(trained / 'epoch_1.pth', weights_only=True)
    assert checkpoint['meta']['epoch'] == 1
    assert len(checkpoint['message_hub']['log_history']['train/loss'][0]) == 6


@needs_torch(2, 4, why='Counter with weights_only')
def test_runner_of_mmengine_resumes_without_a_warning(trained, caplog):
    hub = MessageHub('resumed')
    saved = torch.load(trained / 'epoch_1.pth', weights_only=True)
    hub.load_state_dict(saved['message_hub'])
    assert hub.get_info('epoch') == 0
    assert not caplog.records


def test_arguments_are_not_changed(tmp_path):
    runner = start(tmp_path)
    meta = dict(epoch=3, iter=18, mine=1)
    before = copy.deepcopy(meta)
    runner.save_checkpoint(str(tmp_path), 'a.pth', meta=meta)
    assert meta == before
    saved = torch.load(tmp_path / 'a.pth', weights_only=False)['meta']
    assert saved['mine'] == 1


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


# Resuming ------------------------------------------------------------------


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
