"""The Ray backend, up to the edge: a stand-in with Ray's functions."""

import importlib.machinery
import sys
import types
from concurrent.futures import Future

import fake_readers
import pytest

from mmext.label_check.backends import ray_backend
from mmext.label_check.work import WorkItem, unpack


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ray_backend, 'find_spec', lambda name: None)
    with pytest.raises(ImportError, match=r'mmext\[ray\]'):
        list(ray_backend.run([]))


class _DiedError(Exception):
    pass


@pytest.fixture
def ray(monkeypatch):
    """Calls tasks at once; the first one's worker is lost."""
    ray = types.ModuleType('ray')
    ray.__spec__ = importlib.machinery.ModuleSpec('ray', None)
    ray.calls = []
    ray.exceptions = types.SimpleNamespace(
        WorkerCrashedError=_DiedError, NodeDiedError=_DiedError
    )
    ray.is_initialized = lambda: False
    ray.init = lambda **kwargs: ray.calls.append(('init', kwargs))
    ray.shutdown = lambda: ray.calls.append(('shutdown', {}))
    ray.cluster_resources = lambda: {'CPU': 2.0}

    def remote(**options):
        ray.calls.append(('remote', options))

        def task(function):
            def call(batch):
                future = Future()
                ray.calls.append(('call', len(batch)))
                if ray.calls.count(('call', len(batch))) == 1:
                    future.set_exception(_DiedError())
                else:
                    future.set_result(function(batch))
                return types.SimpleNamespace(future=lambda: future)

            return types.SimpleNamespace(remote=call)

        return task

    ray.remote = remote
    monkeypatch.setitem(sys.modules, 'ray', ray)
    return ray


def test_runs_tasks_and_those_of_a_lost_worker_again(ray, tmp_path):
    path = tmp_path / 'a'
    path.write_bytes(b'12345')
    item = WorkItem(path=str(path), kind='fake_readers:FAST')
    batches = [[item, item]] * 7
    results = list(ray_backend.run(batches, address='local'))
    assert [len(batch) for batch in results] == [2] * 7
    for batch in results:
        facts = unpack(item.kind, batch[0].facts)
        assert facts == fake_readers.facts_of(b'12345')
    assert ray.calls[0] == ('init', {'address': 'local'})
    assert ray.calls[1] == ('remote', {'num_cpus': 1, 'max_retries': 3})
    assert ray.calls.count(('call', 2)) == 8
    assert ray.calls[-1] == ('shutdown', {})


def test_a_cluster_of_the_caller_is_left_alone(ray):
    ray.is_initialized = lambda: True
    assert list(ray_backend.run([])) == []
    assert [name for name, _ in ray.calls] == ['remote']
