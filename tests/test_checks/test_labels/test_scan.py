"""Scans: what is read, what is not read again, and what survives kill -9."""

import os
from functools import partial
from pathlib import Path

import pytest
from helpers import fake_readers

from mmext.checks.labels.check import (
    scan,
    stored_facts,
)
from mmext.checks.labels.store import FactStore, WorkItem, read_batch


def make_items(folder: Path, count: int, kind: str = 'fast') -> list[WorkItem]:
    for i in range(count):
        (folder / f'{i:05}').write_bytes(b'%05d' % i + b'.' * (i % 7))
    return [fake_readers.item(folder / f'{i:05}', kind) for i in range(count)]


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / 'files'
    folder.mkdir()
    return make_items(folder, 100)


@pytest.fixture
def store(tmp_path):
    with FactStore(tmp_path / 'facts.db') as store:
        yield store


def expected(items):
    return [
        fake_readers.facts_of(Path(item.path).read_bytes()) for item in items
    ]


def counted(log, batches):
    """Serial backend that notes what it reads."""
    for batch in batches:
        log += [item.path for item in batch]
        yield read_batch(batch)


def test_second_run_reads_only_what_changed(files, store):
    assert scan(files, store) == 100
    assert list(stored_facts(files, store)) == expected(files)
    log = []
    assert scan(files, store, run=partial(counted, log)) == 0
    assert log == []
    Path(files[7].path).write_bytes(b'bad: of another size')
    os.utime(files[9].path, ns=(1, 1))
    os.remove(files[11].path)
    assert scan(files, store, run=partial(counted, log)) == 3
    assert log == [files[i].path for i in (7, 9, 11)]
    facts = list(stored_facts(files, store))
    assert facts[7].error.text == 'corrupt: bad'
    assert facts[11].error.text == 'missing: No such file or directory'
    assert scan(files, store) == 0


def test_a_file_named_twice_across_look_ups(files, store, monkeypatch):
    monkeypatch.setattr('mmext.checks.labels.check._CHUNK', 8)

    def late(log, batches):
        # Hands results over only after more batches have been asked for.
        held = []
        for batch in batches:
            log += [item.path for item in batch]
            held.append(read_batch(batch))
            if len(held) > 3:
                yield held.pop(0)
        yield from held

    log = []
    scan(files[:20] * 3, store, run=partial(late, log), batch_size=3)
    assert sorted(log) == [item.path for item in files[:20]]


def test_kinds_and_backends_keep_apart(files, store):
    path = files[3].path
    items = [
        files[3],
        WorkItem(path=path, kind='mask'),
        WorkItem(path=path, kind='fast', backend_args={'backend': 'local'}),
    ]
    assert scan(items, store) == 3
    widths = [facts.width for facts in stored_facts(items, store)]
    assert widths == [8, 0, 8]


def test_rejects(files, store):
    with pytest.raises(KeyError, match='scan it first'):
        next(stored_facts(files, store))
