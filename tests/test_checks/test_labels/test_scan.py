"""Scans: what is read, what is not read again, and what survives kill -9."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest
from helpers import fake_readers
from helpers.label_child import stored_paths

from mmext.checks.labels.backends import run_serial
from mmext.checks.labels.scan import (
    _stamp,
    scan,
    stored_facts,
)
from mmext.checks.labels.store import FactStore
from mmext.checks.labels.work import ReadOptions, WorkItem, read_batch

ROOT = Path(__file__).resolve().parents[3]


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


def test_facts_come_in_the_order_of_the_items(files, store):
    shuffled = files[50:] + files[:50][::-1] + files[3:5]
    scan(shuffled, store)
    assert list(stored_facts(shuffled, store)) == expected(shuffled)


def test_a_file_named_twice_is_read_once(files, store):
    log = []
    twice = [files[0], *files, *files[:3]]
    assert scan(twice, store, run=partial(counted, log), batch_size=2) == 100
    assert log == [item.path for item in files]


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


def test_no_items(store):
    assert scan([], store) == 0
    assert list(stored_facts([], store)) == []


def test_rejects(files, store):
    with pytest.raises(KeyError, match='scan it first'):
        next(stored_facts(files, store))


class _StoppedError(Exception):
    """Stands for Ctrl-C."""


def test_what_was_read_before_an_interrupt_is_stored(files, store):
    def stops(batches):
        for number, results in enumerate(run_serial(batches)):
            if number == 3:
                raise _StoppedError
            yield results

    with pytest.raises(_StoppedError):
        scan(files, store, run=stops, batch_size=8)
    assert len(store) == 24
    assert scan(files, store) == 76
    assert list(stored_facts(files, store)) == expected(files)


KILLED = """
    import sys
    from functools import partial
    from mmext.checks.labels.backends import run_joblib, run_serial
    from mmext.checks.labels.scan import scan
    from mmext.checks.labels.store import FactStore
    from helpers import fake_readers

    folder, count, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    items = (
        fake_readers.item(f'{folder}/{i:05}', 'slow') for i in range(count)
    )
    run = partial(run_joblib, workers=workers) if workers else (
        run_serial)
    scan(items, FactStore(f'{folder}/facts.db'), run=run, batch_size=4)
"""


@pytest.mark.parametrize(
    ('workers', 'lost'), [(0, 4), pytest.param(2, 16, marks=pytest.mark.slow)]
)
def test_kill_9_loses_no_more_than_the_batches_at_work(
    tmp_path, workers, lost
):
    make_items(tmp_path, 400)
    log = tmp_path / 'log'
    log.touch()
    path = os.pathsep.join([str(ROOT), str(ROOT / 'tests')])
    env = {**os.environ, 'PYTHONPATH': path, 'FAKE_READERS_LOG': str(log)}
    command = [sys.executable, '-c', textwrap.dedent(KILLED)]
    command += [str(tmp_path), '400', str(workers)]

    def read() -> list[bytes]:
        return [line[:5] for line in log.read_bytes().splitlines()]

    with subprocess.Popen(command, env=env) as process:
        until = time.monotonic() + 60
        while len(read()) < 100 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    # Workers end when they find that their parent is gone.
    before = -1
    while before != len(before_kill := read()):
        before = len(before_kill)
        time.sleep(0.5)
    paths = stored_paths(tmp_path / 'facts.db')
    stored = {Path(path).name.encode() for path in paths}
    assert 100 - lost <= len(stored) < 400
    assert set(before_kill) >= stored
    assert len(set(before_kill) - stored) <= lost
    subprocess.run(command, env=env, check=True)
    times = Counter(read())
    assert len(times) == 400
    twice = {name for name, count in times.items() if count > 1}
    assert twice == set(before_kill) - stored
    assert max(times.values()) <= 2
    items = [
        fake_readers.item(tmp_path / f'{i:05}', 'slow') for i in range(400)
    ]
    with FactStore(tmp_path / 'facts.db') as store:
        assert list(stored_facts(items, store)) == expected(items)
