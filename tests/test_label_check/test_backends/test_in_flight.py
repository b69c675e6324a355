"""Bounded work, and what becomes of batches whose worker dies."""

from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor

import pytest

from mmext.label_check.backends._in_flight import run_in_flight
from mmext.label_check.work import WorkItem, failed_result, unpack


def item(name: str) -> WorkItem:
    return WorkItem(path=name, kind='mask')


def results_of(batch):
    return [failed_result(item, 'corrupt: fake') for item in batch]


def batches_of(names: str, size: int):
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


class Cluster:
    """Does work at once; dies of certain files, with all that is there."""

    def __init__(self, deadly: str, deaths: int = 1000):
        self.deadly = set(deadly)
        self.deaths = deaths
        self.done: list[str] = []

    def submit(self, batch) -> Future:
        future = Future()
        names = [item.path for item in batch]
        if self.deaths and self.deadly & set(names):
            self.deaths -= 1
            future.set_exception(BrokenExecutor('killed'))
        else:
            self.done += names
            future.set_result(results_of(batch))
        return future


def errors(run) -> dict[str, str]:
    found = {}
    for results in run:
        for result in results:
            assert result.path not in found, 'given twice'
            found[result.path] = unpack('mask', result.facts).error
            if 'died' in found[result.path]:
                assert result.stamp == ''
    return found


@pytest.mark.parametrize('deadly', ['', 'c', 'aj', 'abcdefghij'])
def test_only_the_file_that_workers_die_of_gets_the_error(deadly):
    cluster = Cluster(deadly)
    batches = batches_of('abcdefghij', 4)
    found = errors(run_in_flight(batches, cluster.submit, limit=2))
    died = {name for name, error in found.items() if 'died twice' in error}
    assert set(found) == set('abcdefghij')
    assert died == set(deadly)
    assert sorted(cluster.done) == sorted(set('abcdefghij') - died)


def test_a_worker_that_was_killed_once_costs_nothing():
    for size in 1, 4:
        cluster = Cluster('c', deaths=1 + (size == 1))
        batches = batches_of('abcdefghij', size)
        found = errors(run_in_flight(batches, cluster.submit, limit=2))
        assert set(found.values()) == {'corrupt: fake'}
        assert sorted(cluster.done) == list('abcdefghij')


def test_a_pool_that_takes_no_work_loses_no_batch():
    cluster = Cluster('')
    times = iter([True, False, True])

    def submit(batch):
        if next(times, False):
            raise BrokenExecutor('not yet')
        return cluster.submit(batch)

    found = errors(run_in_flight(batches_of('abcdef', 2), submit, limit=2))
    assert set(found.values()) == {'corrupt: fake'}
    assert sorted(cluster.done) == list('abcdef')


def test_other_errors_are_not_caught():
    def submit(batch):
        future = Future()
        future.set_exception(ZeroDivisionError('a bug'))
        return future

    with pytest.raises(ZeroDivisionError, match='a bug'):
        list(run_in_flight(batches_of('ab', 1), submit, limit=2))


def test_rejects_a_limit_of_none():
    with pytest.raises(ValueError, match='limit must be at least 1, got 0'):
        list(run_in_flight([], None, limit=0))
