"""Scans: what is read, what is not read again, and what survives kill -9."""

import os
from functools import partial
from pathlib import Path

import msgspec
import pytest
from helpers import fake_readers

from mmext.checks.labels.scan import (
    _stamp,
    scan,
    stored_facts,
)
from mmext.checks.labels.store import FactStore
from mmext.checks.labels.work import ReadOptions, WorkItem, read_batch


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
        (item, fake_readers.facts_of(Path(item.path).read_bytes()))
        for item in items
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
    facts = [facts for _, facts in stored_facts(files, store)]
    assert facts[7].error.text == 'corrupt: bad'
    assert facts[11].error.text == 'missing: No such file or directory'
    assert scan(files, store) == 0


def test_a_file_named_twice_across_look_ups(files, store, monkeypatch):
    monkeypatch.setattr('mmext.checks.labels.scan._CHUNK', 8)

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


def test_another_version_of_the_reader_reads_anew(files, store):
    options = ReadOptions(verify=True)
    checked = [msgspec.structs.replace(i, options=options) for i in files[:5]]
    assert scan(files[:5], store) == 5
    assert scan(checked, store) == 5
    assert scan(checked, store) == 0


def test_kinds_and_backends_keep_apart(files, store):
    options = ReadOptions(backend_args={'backend': 'local'})
    path = files[3].path
    items = [
        files[3],
        WorkItem(path=path, kind='mask'),
        WorkItem(path=path, kind='fast', options=options),
    ]
    assert scan(items, store) == 3
    widths = [facts.width for _, facts in stored_facts(items, store)]
    assert widths == [8, 0, 8]


def test_without_stamps_bytes_are_compared(files, store, monkeypatch):
    monkeypatch.setattr('mmext.checks.labels.scan._stamp', lambda item: '')
    assert scan(files, store) == 100
    Path(files[2].path).write_bytes(b'new')
    assert scan(files, store) == 100
    assert list(stored_facts(files, store)) == expected(files)


def test_stamps_tell_size_and_time(tmp_path):
    path = tmp_path / 'a'
    path.write_bytes(b'12345')
    os.utime(path, ns=(5, 10**18 + 7))
    lmdb = ReadOptions(backend_args={'backend': 'lmdb', 'db_path': 'x'})
    items = [
        WorkItem(path=str(path), kind='mask'),
        WorkItem(path=str(path / 'below'), kind='mask'),
        WorkItem(path='https://host/a', kind='mask'),
        WorkItem(path='a', kind='mask', options=lmdb),
        WorkItem(path='what://a', kind='mask'),
        WorkItem(path='a\0b', kind='mask'),
    ]
    assert [_stamp(item) for item in items] == [
        f'5:{10**18 + 7}',
        'absent',
        '',
        '',
        '',
        '',
    ]


def test_progress_ends_at_all_of_them(files, store):
    seen = []
    scan(files, store, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 100
    assert len(set(seen)) > 3


def test_rejects(files, store):
    with pytest.raises(KeyError, match='scan it first'):
        next(stored_facts(files, store))
