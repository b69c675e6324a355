"""kill -9 in the middle of a check, and the same command again."""

import re

import pytest
from helpers.label_child import SlowTool, stored_paths
from helpers.label_data import write_pairs
from helpers.label_sets import noise

PAIRS = 150
BATCH = 16


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = write_pairs(tmp_path_factory.mktemp('data') / 'x', PAIRS)
    (folder / 'masks' / '7.png').write_bytes(b'')
    noise([9], 24, 31).save(folder / 'images' / '9.png')
    return folder


@pytest.fixture(scope='module')
def tool(data, checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp('tool') / 'x'
    return SlowTool(folder, data, checkout)


def arguments(data, folder, workers: int) -> list:
    return [
        '--masks',
        data / 'masks',
        '--images',
        data / 'images',
        '--num-classes',
        3,
        '--store',
        folder / 'facts.sqlite',
        '--json',
        folder / 'report.json',
        '--workers',
        workers,
    ]


@pytest.fixture(scope='module')
def uninterrupted(data, tool, tmp_path_factory):
    """Report of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp('whole')
    assert tool.run(*arguments(data, folder, 1)) == 1
    reads = tool.reads()
    assert len(reads) == len(set(reads)) == 2 * PAIRS
    return (folder / 'report.json').read_bytes()


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_check(data, tool, tmp_path):
    """One error names the files; without the cause, the check goes on."""
    options = arguments(data, tmp_path, 2)
    deadly = str(data / 'masks' / '40.png')
    process = tool.start(*options, deadly=deadly)
    output, _ = process.communicate(timeout=240)
    text = output.decode()
    assert process.returncode == 2, text
    assert 'Traceback' not in text
    files = re.search(
        r'error: a worker process died .* while it read one of '
        r"(\d+) files, from '(.*)' to '(.*)'\. If .* fewer workers or more",
        text,
    )
    assert BATCH <= int(files[1]) <= 4 * BATCH
    assert str(data) in files[2]
    assert str(data) in files[3]
    stored = stored_paths(tmp_path / 'facts.sqlite')
    assert deadly not in stored
    tool.reads()
    assert tool.run(*options) == 1
    assert not stored & set(tool.reads())


# Batches at work: one in the process itself, or two for each of a pool.
@pytest.mark.slow
@pytest.mark.parametrize(('workers', 'batches'), [(1, 1), (2, 4)])
def test_killed_and_started_again(
    workers, batches, data, tool, uninterrupted, tmp_path
):
    options = arguments(data, tmp_path, workers)
    store = tmp_path / 'facts.sqlite'
    stored = tool.run_and_kill(store, 100, *options)
    first = tool.reads()
    assert not (tmp_path / 'report.json').exists()
    assert 100 <= len(stored) < 2 * PAIRS
    assert len(first) == len(set(first))
    assert stored <= set(first)
    assert tool.run(*options) == 1
    assert (tmp_path / 'report.json').read_bytes() == uninterrupted
    second = tool.reads()
    assert not stored & set(second)
    assert len(second) == 2 * PAIRS - len(stored)
    twice = set(first) & set(second)
    assert len(twice) <= batches * BATCH
    assert len(stored_paths(store)) == 2 * PAIRS
    # A third run reads nothing.
    assert tool.run(*options) == 1
    assert tool.reads() == []
    assert (tmp_path / 'report.json').read_bytes() == uninterrupted
