"""Processes and clusters read the same facts as one process."""

import os
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from helpers import fake_readers
from joblib.externals.loky import get_reusable_executor

from mmext.checks.labels import store as work
from mmext.checks.labels.store import (
    Result,
    WorkItem,
    run_dask,
    run_in_flight,
    run_joblib,
)

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


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr(work, 'find_spec', lambda name: None)
    with pytest.raises(ImportError, match=r'mmext\[dask\]'):
        list(run_dask([], scheduler='tcp://127.0.0.1:1'))


def item(name: str) -> WorkItem:
    return WorkItem(path=name, kind='mask')


def results_of(batch):
    return [
        Result(path=item.path, kind=item.kind, stamp='', facts=b'')
        for item in batch
    ]


def in_flight_batches_of(names: str, size: int):
    return [
        [item(name) for name in names[i : i + size]]
        for i in range(0, len(names), size)
    ]


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
