"""One training at a time in a work dir."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

_NAME = 'training.lock'


class WorkDirInUseError(RuntimeError):
    """Another training writes into the work dir."""


@contextmanager
def work_dir_lock(work_dir: str | Path) -> Iterator[None]:
    """Hold ``work_dir/training.lock``, which names this process and its host.

    The lock is one of the operating system (``fcntl.lockf``): it ends with
    the process, however that ends, and on network file systems that pass
    locks on it holds between machines. The file goes when the lock does; one
    of a process that was killed stays, and is taken over. Without ``fcntl``,
    on Windows, there is no lock.

    Args:
        work_dir: Folder that exists.

    Raises:
        WorkDirInUseError: If another process holds it. Its number, host and
            start are named.
    """
    if fcntl is None:
        yield
        return
    path = Path(work_dir) / _NAME
    with _held(path) as file:
        owner = {
            'pid': os.getpid(),
            'host': socket.gethostname(),
            'since': f'{datetime.now():%Y-%m-%d %H:%M:%S}',
        }
        file.truncate(0)
        file.write(json.dumps(owner))
        file.flush()
        try:
            yield
        finally:
            # While it is held: nobody else's is removed.
            path.unlink(missing_ok=True)


@contextmanager
def _held(path: Path) -> Iterator[IO]:
    while True:
        with open(path, 'a+') as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise _in_use(path) from error
            if _is_file_at(file, path):
                yield file
                return


def _is_file_at(file: IO, path: Path) -> bool:
    """Else its owner has removed it in between."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _in_use(path: Path) -> WorkDirInUseError:
    try:
        owner = json.loads(path.read_text())
        who = (
            f'process {owner["pid"]} on {owner["host"]}, since '
            f'{owner["since"]}'
        )
    except (OSError, ValueError, KeyError):
        who = 'another process, which has not yet said which'
    return WorkDirInUseError(
        f'work_dir {path.parent} is in use by another training: {who}. Give '
        'this one a --work-dir of its own, or wait until that one has ended'
    )
