"""The process pool: facts as those of one process, also if processes die."""

import os
from pathlib import Path

import fake_readers
import pytest

from mmext.label_check.backends import joblib_backend, serial
from mmext.label_check.work import WorkItem, unpack

HELPERS = str(Path(fake_readers.__file__).parent)


@pytest.fixture(autouse=True)
def _paths(monkeypatch):
    """Processes of the pool find the fake readers."""
    root = str(Path(__file__).resolve().parents[3])
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([root, HELPERS]))
    yield
    joblib_backend.get_reusable_executor(max_workers=2).shutdown(
        wait=True, kill_workers=True
    )


def batches_of(folder: Path, kind: str, contents: list[bytes]):
    items = []
    for number, content in enumerate(contents):
        path = folder / f'{number:03}'
        path.write_bytes(content)
        items.append(WorkItem(path=str(path), kind=kind))
    return [items[i : i + 5] for i in range(0, len(items), 5)]


def by_path(run):
    return {r.path: r for results in run for r in results}


def test_same_results_as_the_serial_backend(tmp_path):
    contents = [b'x' * n for n in range(40)]
    batches = batches_of(tmp_path, 'fake_readers:FAST', contents)
    asked = []

    def counted():
        for batch in batches:
            asked.append(batch)
            yield batch

    run = joblib_backend.run(counted(), workers=2, in_flight=2)
    first = next(run)
    assert len(asked) == 2
    found = {r.path: r for r in first} | by_path(run)
    assert found == by_path(serial.run(batches))


def test_processes_that_die_of_a_file(tmp_path):
    contents = [b'fine'] * 30
    contents[7] = contents[22] = b'poison'
    batches = batches_of(tmp_path, 'fake_readers:DEADLY', contents)
    found = by_path(joblib_backend.run(batches, workers=2))
    assert len(found) == 30
    for number, (_, result) in enumerate(sorted(found.items())):
        facts = unpack('fake_readers:DEADLY', result.facts)
        if number in (7, 22):
            assert facts.error.startswith('cannot be read: a worker died')
        else:
            assert facts == fake_readers.facts_of(b'fine')


def test_a_run_that_is_left_ends_its_processes(tmp_path):
    batches = batches_of(tmp_path, 'fake_readers:FAST', [b'x'] * 40)
    run = joblib_backend.run(batches, workers=2)
    next(run)
    run.close()
    # A new run starts new ones.
    assert len(by_path(joblib_backend.run(batches, workers=2))) == 40


@pytest.mark.parametrize('wrong', [{'workers': -1}, {'in_flight': -1}])
def test_rejects_negative_numbers(wrong):
    with pytest.raises(ValueError, match='must be at least 0, got'):
        list(joblib_backend.run([], **wrong))
