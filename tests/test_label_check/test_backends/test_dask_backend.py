"""The Dask backend on a real cluster of two processes, one of them killed."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import fake_readers
import pytest

from mmext.label_check.backends import dask_backend
from mmext.label_check.scan import scan, stored_facts
from mmext.label_check.store import FactStore
from mmext.label_check.work import WorkItem

ROOT = Path(__file__).resolve().parents[3]
# Seconds for processes to start, on a machine that has much to do.
PATIENCE = 240


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr(dask_backend, 'find_spec', lambda name: None)
    with pytest.raises(ImportError, match=r'mmext\[dask\]'):
        list(dask_backend.run([], scheduler='tcp://127.0.0.1:1'))


@pytest.fixture
def cluster(tmp_path):
    """Address of a scheduler, and its two workers."""
    pytest.importorskip('distributed', reason='needs Dask')
    address = tmp_path / 'scheduler.json'
    log = tmp_path / 'log'
    log.touch()
    helpers = str(Path(fake_readers.__file__).parent)
    env = {**os.environ, 'FAKE_READERS_LOG': str(log)}
    env['PYTHONPATH'] = os.pathsep.join(
        [str(ROOT), helpers, *os.environ.get('PYTHONPATH', '').split(':')]
    )
    start = partial(
        subprocess.Popen, env=env, cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    both = ['--scheduler-file', str(address), '--no-dashboard']
    options = ['--nthreads', '1', '--no-nanny']
    processes = [
        start([*_script('scheduler'), '--port', '0', *both]),
        start([*_script('worker'), *options, *both]),
        start([*_script('worker'), *options, *both]),
    ]
    try:
        yield address, processes[1:], log
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _script(name: str) -> list[str]:
    return [sys.executable, '-m', f'distributed.cli.dask_{name}']


def _address(file: Path) -> str:
    """What the scheduler writes, not at once, as it starts."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            return json.loads(file.read_text())['address']
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.1)
    raise TimeoutError(f'no scheduler has written {file}')


def _wait_for_workers(address: str) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=PATIENCE)


def test_a_worker_that_is_killed_loses_nothing(cluster, tmp_path):
    file, workers, log = cluster
    address = _address(file)
    _wait_for_workers(address)
    items = []
    for number in range(300):
        path = tmp_path / f'{number:03}'
        path.write_bytes(b'%03d' % number + b'.' * (number % 5))
        items.append(WorkItem(path=str(path), kind='fake_readers:SLOW'))

    def kill(done: int) -> None:
        if done >= 60 and workers[0].poll() is None:
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()

    run = partial(dask_backend.run, scheduler=address)
    with FactStore(tmp_path / 'facts.db') as store:
        counts = scan(items, store, run=run, batch_size=5, progress=kill)
        assert workers[0].returncode == -signal.SIGKILL
        assert (counts.read, counts.errors) == (300, 0)
        for item, facts in stored_facts(items, store):
            content = Path(item.path).read_bytes()
            assert facts == fake_readers.facts_of(content)
        assert scan(items, store, run=run).read == 0
    # Every file is read; those of the lost worker's batches again.
    lines = log.read_bytes().splitlines()
    assert len({line[:3] for line in lines}) == 300
    assert len(lines) <= 300 + 6 * 5
