import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mmext.engine.worker_signals import protect_workers, start_worker


class Pids(Dataset):
    """Each sample is the process that read it, after a while."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(0.05)
        return os.getpid()


def noting(worker_id):
    torch.manual_seed(100 + worker_id)


def loader(**kwargs):
    result = DataLoader(Pids(), num_workers=1, batch_size=1, **kwargs)
    protect_workers(result)
    return result


@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_worker_survives_the_signal_of_its_group(signum):
    batches = iter(loader())
    worker = int(next(batches))
    os.kill(worker, signum)
    assert [int(batch) for batch in batches] == [worker] * 5


def test_second_sigterm_counts():
    batches = iter(loader())
    worker = int(next(batches))
    os.kill(worker, signal.SIGTERM)
    next(batches)
    os.kill(worker, signal.SIGTERM)
    with pytest.raises(RuntimeError, match='worker'):
        list(batches)


def test_own_init_fn_still_runs(monkeypatch):
    handlers = {}
    monkeypatch.setattr(signal, 'signal', handlers.__setitem__)
    calls = []
    start_worker(3, calls.append)
    start_worker(4)
    assert calls == [3]
    assert handlers[signal.SIGINT] == signal.SIG_IGN
    assert callable(handlers[signal.SIGTERM])


def test_wrapped_once():
    result = loader(worker_init_fn=noting)
    wrapped = result.worker_init_fn
    protect_workers(result)
    assert result.worker_init_fn is wrapped
    assert wrapped.keywords == dict(init_fn=noting)


def test_python_exits_with_workers_left():
    """As after a training with persistent workers, or after an error."""
    code = (
        'import test_worker_signals as tests\n'
        'tests.kept = iter(tests.loader(persistent_workers=True))\n'
        'next(tests.kept)\n'
        'raise SystemExit(3)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=Path(__file__).parent,
        env={**os.environ, 'PYTHONPATH': str(Path(__file__).parent)},
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, 'Traceback' in done.stderr) == (3, False)
