import copy
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import process_environ, run_on_ranks, start_ranks
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, LoggerHook
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mmext.engine import GracefulStopHook, PortableRunner
from mmext.engine.distributed import DistributedDataParallel
from mmext.engine.runner import protect_workers


def hooks_of(runner, kind):
    return [hook for hook in runner.hooks if isinstance(hook, kind)]


def test_log_names_device_and_operators(tmp_path, monkeypatch):
    monkeypatch.setattr('mmext.ops.choice._logged', set())
    monkeypatch.setattr('mmext.ops.choice._chosen', 'auto')
    monkeypatch.delenv('MMEXT_OPS', raising=False)
    toy.build(tmp_path, ops_backend='pytorch')
    (log,) = tmp_path.rglob('*.log')
    text = log.read_text()
    assert 'Device: cpu' in text
    assert text.count('Operators on cpu: ms_deform_attn') == 1
    assert ': PyTorch (pytorch was chosen)' in text or 'compiled' in text
    with pytest.raises(ValueError, match=r"ops_backend must be .*got 'fast'"):
        toy.build(tmp_path, ops_backend='fast')


def test_freed_memory_is_kept_unless_the_user_chose(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(
        'mmext.engine.runner.keep_freed_memory',
        lambda: kept.append(1) or len(kept) == 1,
    )
    for name, said in (('first', True), ('second', False)):
        toy.build(tmp_path / name)
        (log,) = (tmp_path / name).rglob('*.log')
        assert ('Device: cpu, freed memory is kept' in log.read_text()) is said
    assert len(kept) == 2


@pytest.mark.parametrize(
    ('threads', 'said'),
    [(1, ''), (8, ''), (9, '1 process(es) of this machine with 9 threads')],
)
def test_more_threads_than_processors(tmp_path, monkeypatch, threads, said):
    monkeypatch.setattr(os, 'cpu_count', lambda: 8)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: threads)
    toy.build(tmp_path)
    (log,) = tmp_path.rglob('*.log')
    text = log.read_text()
    assert said in text
    assert ('set OMP_NUM_THREADS=8' in text) is bool(said)


def test_run_on_a_cpu_does_not_ask_a_gpu(tmp_path, monkeypatch):
    for name in ('log_processor', 'runner'):
        monkeypatch.setattr(
            f'mmengine.runner.{name}.is_cuda_available',
            lambda: True,
            raising=False,
        )
    monkeypatch.setattr(
        'mmengine.runner.log_processor.get_max_cuda_memory',
        lambda device: pytest.fail('asks'),
    )
    toy.train(tmp_path, train_cfg=dict(by_epoch=True, max_epochs=1))


def test_stops_on_signals_always_and_once(tmp_path):
    runner = toy.build(tmp_path)
    (hook,) = hooks_of(runner, GracefulStopHook)
    assert runner.hooks[-1] is hook


def test_default_hooks_can_be_left_out(tmp_path):
    runner = toy.build(
        tmp_path,
        default_hooks=dict(
            logger=None,
            mine=None,
            checkpoint=None,
            stop=dict(type='mmext.GracefulStopHook'),
        ),
    )
    assert not hooks_of(runner, (LoggerHook, CheckpointHook))
    assert len(hooks_of(runner, GracefulStopHook)) == 1


def test_text_of_the_config_is_formatted_when_it_changes(
    tmp_path, monkeypatch
):
    formatted = []
    host = Config.pretty_text

    def counted(self):
        formatted.append(self)
        return host.fget(self)

    monkeypatch.setattr(Config, 'pretty_text', property(counted))
    runner = toy.build(tmp_path, train_cfg=dict(by_epoch=True, max_epochs=1))
    runner.train()
    assert len(formatted) == 1
    plain = Config(runner.cfg.to_dict())
    assert runner.cfg.pretty_text == plain.pretty_text
    runner.cfg.note = {'added': True}
    assert runner.cfg.pretty_text.count('added=True') == 1
    assert copy.deepcopy(runner.cfg).pretty_text == runner.cfg.pretty_text
    again = pickle.loads(pickle.dumps(runner.cfg))
    assert again.pretty_text == runner.cfg.pretty_text
    assert len(formatted) == 4


def test_built_loop_and_loader_are_taken(tmp_path):
    runner = toy.build(tmp_path)
    loop = runner.train_loop
    assert runner.build_train_loop(loop) is loop
    assert PortableRunner.build_dataloader(loop.dataloader) is loop.dataloader


def test_failing_sample_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"sample 5 of ToyDataset, image '5"):
        toy.train(tmp_path, train_dataloader=toy.loader(broken=5))


# Several processes ----------------------------------------------------------


def build_wrapped():
    """Wrapping, in two processes on a CPU."""
    folder = os.environ['FOLDER']
    changes = dict(launcher='pytorch', sync_bn='torch')
    runner = toy.build(
        folder,
        **changes,
        find_unused_parameters=True,
        model_wrapper_cfg=dict(broadcast_buffers=True),
        model=dict(type='ToyModel', norm='SyncBN'),
    )
    model = runner.model
    assert type(model) is DistributedDataParallel
    assert model.find_unused_parameters
    assert model.broadcast_buffers
    assert model.device_ids is None
    assert type(model.module.norm) is not nn.SyncBatchNorm
    assert not model.broadcast_buffers or runner.device.type == 'cpu'
    runner.train()
    plain = toy.build(folder, **changes, model=dict(type='ToyModel'))
    assert not plain.model.broadcast_buffers
    assert not plain.model.find_unused_parameters
    assert plain.dist_timeout_s == 60


@pytest.mark.xdist_group('processes')
def test_wrapping_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv('FOLDER', str(tmp_path / 'run'))
    monkeypatch.setattr(os, 'cpu_count', lambda: 2)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 2)
    ranks = run_on_ranks(build_wrapped, 2, tmp_path / 'out')
    assert ranks.wait() == [0, 0], ranks.output() + ranks.output(1)
    assert 'SyncBN works on GPUs only' in ranks.output()
    assert '2 process(es) over gloo' in ranks.output()
    assert '2 process(es) of this machine with 2 threads' in ranks.output()
    assert 'set OMP_NUM_THREADS=1' in ranks.output()


@pytest.mark.xdist_group('processes')
def test_two_processes_are_one_with_twice_the_batch(tmp_path):
    """Same data, same order, same weights up to rounding; equal replicas."""
    changes = dict(
        train_dataloader=toy.loader(shuffle=False),
        train_cfg=dict(by_epoch=True, max_epochs=2),
    )
    cfg = toy.traced(tmp_path / 'trace', toy.config(**changes))
    ranks = start_ranks(
        [toy.write(tmp_path / 'cfg.py', cfg), '--work-dir', tmp_path / 'w'],
        2,
        tmp_path / 'out',
    )
    assert ranks.wait() == [0, 0], ranks.output()
    weights = [
        toy.read_trace(tmp_path / f'trace.{rank}')[-1]['weights']
        for rank in range(2)
    ]
    assert weights[0] == weights[1]
    alone = toy.train(
        tmp_path / 'one',
        **{
            **changes,
            'train_dataloader': toy.loader(shuffle=False, batch_size=4),
        },
    )
    for ours, theirs in zip(weights[0], alone[-1]['weights']):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))


class Pids(Dataset):
    """Each sample is the process that read it, after a while."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(0.05)
        return os.getpid()


def loader(**kwargs):
    result = DataLoader(Pids(), num_workers=1, batch_size=1, **kwargs)
    protect_workers(result)
    return result


def test_second_sigterm_counts():
    batches = iter(loader())
    worker = int(next(batches))
    os.kill(worker, signal.SIGTERM)
    next(batches)
    os.kill(worker, signal.SIGTERM)
    with pytest.raises(RuntimeError, match='worker'):
        list(batches)


@pytest.mark.slow
@pytest.mark.xdist_group('processes')
def test_python_exits_with_workers_left():
    """As after a training with persistent workers, or after an error."""
    code = (
        'import mmext, test_runner as tests\n'
        'tests.kept = iter(tests.loader(persistent_workers=True))\n'
        'next(tests.kept)\n'
        'raise SystemExit(3)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=Path(__file__).parent,
        env=process_environ(),
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, 'Traceback' in done.stderr) == (3, False)
