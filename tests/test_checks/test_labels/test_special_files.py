"""FIFOs, devices and sockets among the data: a finding at once, no wait."""

import os
import signal
import socket
from pathlib import Path

import pytest
from helpers.label_sets import DataSet, clean

SECONDS = 60


@pytest.fixture(autouse=True)
def _no_hanging():
    """End a test that waits: opening a FIFO is interrupted by a signal."""

    def stop(signum, frame):
        raise TimeoutError('it waits for a file')

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put(kind: str, path: Path) -> None:
    """Put something that is no regular file in place of one."""
    path.unlink()
    if kind == 'fifo':
        os.mkfifo(path)
    elif kind == 'zero':
        path.symlink_to('/dev/zero')
    else:
        with socket.socket(socket.AF_UNIX) as server:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                # The name of a socket is short.
                server.bind(f'/proc/self/fd/{folder}/{path.name}')
            finally:
                os.close(folder)


def first_files(root: Path) -> list[Path]:
    """One file of each suffix in each folder of the data."""
    found: dict[tuple, Path] = {}
    for path in sorted(root.rglob('*')):
        if path.is_file() and path.suffix not in ('.py', '.sqlite'):
            found.setdefault((path.parent, path.suffix), path)
    return list(found.values())


def check(data: DataSet) -> tuple:
    """Exit code, and the report if there is one."""
    try:
        return data.check()
    except SystemExit as error:
        return error.code, None


@pytest.mark.parametrize(
    'kind',
    [
        'fifo',
        pytest.param('zero', marks=pytest.mark.slow),
        pytest.param('socket', marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    'data_kind',
    ['semantic', 'folders', 'coco', 'coco_bare', 'openmmlab', 'voc_bare'],
)
def test_each_file_of_a_data_set(data_kind, kind, tmp_path, capsys):
    root = clean(data_kind, tmp_path / 'names').root
    names = [path.relative_to(root) for path in first_files(root)]
    if data_kind in ('folders', 'coco_bare'):
        names = [name for name in names if 'val' not in str(name)]
    assert names
    for number, name in enumerate(names):
        data = clean(data_kind, tmp_path / str(number))
        path = data.root / name
        put(kind, path)
        code, report = check(data)
        error = capsys.readouterr().err
        if code == 2:
            # A list of the samples, without which nothing can be checked.
            assert str(path) in error
            assert 'regular file' in error or 'annotation file' in error
            continue
        assert code == 1, name
        said = [
            group
            for group in report.groups
            if any(example.file == str(path) for example in group.examples)
        ]
        assert said, (name, report.groups)
