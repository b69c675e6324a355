"""Processes and clusters read the same facts as one process."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from helpers import fake_readers
from joblib.externals.loky import get_reusable_executor

from mmext.checks.labels import backends
from mmext.checks.labels.backends import (
    run_dask,
    run_in_flight,
    run_joblib,
    run_serial,
)
from mmext.checks.labels.facts import ErrorKind, ReadError
from mmext.checks.labels.scan import scan, stored_facts
from mmext.checks.labels.store import FactStore
from mmext.checks.labels.work import WorkItem, failed_result, unpack

HELPERS = str(Path(fake_readers.__file__).parents[1])


@pytest.fixture(autouse=True)
def _paths(monkeypatch):
    """Processes of the pool find the fake readers."""
    root = str(Path(__file__).resolve().parents[3])
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([root, HELPERS]))
    yield
    get_reusable_executor(max_workers=2).shutdown(wait=True, kill_workers=True)


def batches_of(folder: Path, kind: str, contents: list[bytes]):
    items = []
    for number, content in enumerate(contents):
        path = folder / f'{number:03}'
        path.write_bytes(content)
        items.append(fake_readers.item(path, kind))
    return [items[i : i + 5] for i in range(0, len(items), 5)]


def by_path(run):
    return {r.path: r for results in run for r in results}


def test_same_results_as_the_serial_backend(tmp_path):
    contents = [b'x' * n for n in range(40)]
    batches = batches_of(tmp_path, 'fast', contents)
    asked = []

    def counted():
        for batch in batches:
            asked.append(batch)
            yield batch

    run = run_joblib(counted(), workers=2, in_flight=2)
    first = next(run)
    assert len(asked) == 2
    found = {r.path: r for r in first} | by_path(run)
    assert found == by_path(run_serial(batches))


def test_a_run_that_is_left_ends_its_processes(tmp_path):
    batches = batches_of(tmp_path, 'fast', [b'x'] * 40)
    run = run_joblib(batches, workers=2)
    next(run)
    run.close()
    # A new run starts new ones.
    assert len(by_path(run_joblib(batches, workers=2))) == 40


@pytest.mark.parametrize(('number', 'started'), [(1, 1), (9, 4)])
def test_starts_no_more_processes_than_there_are_batches(
    tmp_path, monkeypatch, number, started
):
    asked = set()

    def pool(max_workers):
        asked.add(max_workers)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr('joblib.externals.loky.get_reusable_executor', pool)
    batches = batches_of(tmp_path, 'fast', [b'x'] * 5 * number)
    assert len(by_path(run_joblib(batches, workers=4))) == 5 * number
    assert asked == {started}


def test_a_process_that_reads_loads_little():
    code = (
        'import sys, mmext.checks.labels.work; print([m for m in ("torch", '
        '"joblib", "mmext.checks.labels.rules") if m in sys.modules])'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True
    )
    assert done.stdout == '[]\n', done.stderr


ROOT = Path(__file__).resolve().parents[3]
# Seconds for processes to start, on a machine that has much to do.
PATIENCE = 240


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr(backends, 'find_spec', lambda name: None)
    with pytest.raises(ImportError, match=r'mmext\[dask\]'):
        list(run_dask([], scheduler='tcp://127.0.0.1:1'))


@pytest.fixture
def cluster(tmp_path):
    """Address of a scheduler, and its two workers."""
    pytest.importorskip('distributed', reason='needs Dask')
    address = tmp_path / 'scheduler.json'
    log = tmp_path / 'log'
    log.touch()
    helpers = str(Path(fake_readers.__file__).parents[1])
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


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(cluster, tmp_path):
    file, workers, log = cluster
    address = _address(file)
    _wait_for_workers(address)
    items = []
    for number in range(300):
        path = tmp_path / f'{number:03}'
        path.write_bytes(b'%03d' % number + b'.' * (number % 5))
        items.append(fake_readers.item(path, 'slow'))

    def kill(done: int) -> None:
        if done >= 60 and workers[0].poll() is None:
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()

    run = partial(run_dask, scheduler=address)
    with FactStore(tmp_path / 'facts.db') as store:
        read = scan(items, store, run=run, batch_size=5, progress=kill)
        assert workers[0].returncode == -signal.SIGKILL
        assert read == 300
        for item, facts in stored_facts(items, store):
            content = Path(item.path).read_bytes()
            assert facts == fake_readers.facts_of(content)
        assert scan(items, store, run=run) == 0
    # Every file is read; those of the lost worker's batches again.
    lines = log.read_bytes().splitlines()
    assert len({line[:3] for line in lines}) == 300
    assert len(lines) <= 300 + 6 * 5


def item(name: str) -> WorkItem:
    return WorkItem(path=name, kind='mask')


FAKE = ReadError(ErrorKind.CORRUPT, 'fake')


def results_of(batch):
    return [failed_result(item, FAKE) for item in batch]


def in_flight_batches_of(names: str, size: int):
    return [
        [item(name) for name in names[i : i + size]]
        for i in range(0, len(names), size)
    ]


def test_no_more_than_the_limit_is_at_work():
    at_work, most, asked = 0, 0, 0

    def work(batch):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        at_work -= 1
        return results_of(batch)

    def batches():
        nonlocal asked
        for name in 'abcdefghijklmnopqrst':
            asked += 1
            yield [item(name)]

    with ThreadPoolExecutor(8) as pool:
        run = run_in_flight(batches(), lambda b: pool.submit(work, b), limit=3)
        seen = [next(run)[0].path]
        assert asked == 3
        seen += [results[0].path for results in run]
    assert most <= 3
    assert sorted(seen) == list('abcdefghijklmnopqrst')


def failing(batch, error: Exception) -> Future:
    """A future of results, or of an error where 'c' is in the batch."""
    future = Future()
    if any(item.path == 'c' for item in batch):
        future.set_exception(error)
    else:
        future.set_result(results_of(batch))
    return future


def test_what_is_read_beside_a_worker_that_dies_is_kept():
    submit = partial(failing, error=BrokenExecutor('killed'))
    run = run_in_flight(in_flight_batches_of('abcdef', 2), submit, limit=2)
    assert [result.path for result in next(run)] == ['a', 'b']
    with pytest.raises(ChildProcessError, match="2 files, from 'c' to 'd'"):
        next(run)


def test_a_pool_that_takes_no_work_is_an_error():
    def submit(batch):
        raise BrokenExecutor('killed')

    with pytest.raises(ChildProcessError, match="2 files, from 'a' to 'b'"):
        list(run_in_flight(in_flight_batches_of('abc', 2), submit, limit=2))


def test_other_errors_are_not_caught():
    submit = partial(failing, error=ZeroDivisionError('a bug'))
    with pytest.raises(ZeroDivisionError, match='a bug'):
        list(run_in_flight(in_flight_batches_of('abc', 1), submit, limit=2))


def test_reads_batches_only_as_they_are_asked_for(tmp_path):
    path = tmp_path / 'a'
    path.write_bytes(b'12345')
    item = fake_readers.item(path, 'fast')
    asked = []

    def batches():
        for size in 1, 2, 3:
            asked.append(size)
            yield [item] * size

    results = run_serial(batches())
    first = next(results)
    assert asked == [1]
    assert unpack(item.kind, first[0].facts) == fake_readers.facts_of(b'12345')
    assert [len(batch) for batch in results] == [2, 3]
