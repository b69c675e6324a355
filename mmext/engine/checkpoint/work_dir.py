"""The folder of a training: one training at a time, and its own files only.

MMEngine's checkpoint hook keeps absolute paths of the last and of the best
checkpoint in the message hub, and so in every checkpoint. A run that is
resumed in a copy of its work dir would take them, and in the end delete the
best checkpoint of the original. Here, checkpoints hold names; what is read
from one is put into the present folder by name, whatever it was.
"""

import json
import os
import socket
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MessageHub

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

_LOCK_FILE = 'training.lock'
_LAST, _BEST, _KEPT = 'last_ckpt', 'best_ckpt', 'keep_ckpt_ids'
# Steps of checkpoints that go when the one that says so is complete.
OUTDATED = 'outdated_ckpt_ids'


# One training at a time


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
    path = Path(work_dir) / _LOCK_FILE
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


# Its own files


def _is_path_key(key: str) -> bool:
    return key in (_LAST, _BEST) or key.startswith(f'{_BEST}_')


def _name(path: Any) -> str:
    """Last part of a path or an address, of this system or another one."""
    return str(path).replace('\\', '/').rstrip('/').rpartition('/')[2]


def _join(folder: str, name: str) -> str:
    return (
        f'{folder.rstrip("/")}/{name}'
        if '://' in folder
        else os.path.join(folder, name)
    )


def is_below(path: str | Path, folder: str | Path) -> bool:
    """Whether a path or address is inside of a folder, by its text."""
    path, folder = str(path), str(folder)
    if '://' in folder:
        inside = path.startswith(f'{folder.rstrip("/")}/')
        return inside and '..' not in path.split('/')
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))


def checkpoint_dir(hooks: Iterable[Hook], work_dir: str) -> str:
    """Where the checkpoint hook of a run is going to write."""
    for hook in hooks:
        if isinstance(hook, CheckpointHook):
            folder = hook.out_dir
            if folder is None or str(folder) == work_dir:
                return work_dir
            # As the hook does it when a training starts.
            return _join(str(folder), os.path.basename(work_dir.rstrip('/')))
    return work_dir


def with_names_only(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What changes in a checkpoint so that it holds names, not paths."""
    hub = checkpoint.get('message_hub')
    if not isinstance(hub, Mapping) or 'runtime_info' not in hub:
        return {}
    info = OrderedDict(
        (key, _name(value) if value and _is_path_key(key) else value)
        for key, value in hub['runtime_info'].items()
    )
    return {'message_hub': {**hub, 'runtime_info': info}}


def join_names(hub: MessageHub, out_dir: str) -> None:
    """Put names in a message hub back into the folder of checkpoints."""
    info = hub.runtime_info
    for key in list(info):
        value = info[key]
        if value and _is_path_key(key) and _name(value) == str(value):
            info[key] = _join(out_dir, str(value))


def adopt_checkpoints(
    hub: MessageHub, resumed_from: str, work_dir: str, out_dir: str
) -> list[str]:
    """Make what a resumed message hub says of checkpoints true here.

    Paths become those of files in ``out_dir`` with the same name. If the run
    goes on from a checkpoint that is not in its own folders, the best one and
    older ones beside that are somebody else's, and are forgotten; returns
    their names.
    """
    info = hub.runtime_info
    keys = [key for key in info if _is_path_key(key) and info[key]]
    own = is_below(os.path.realpath(resumed_from), os.path.realpath(work_dir))
    if '://' in out_dir or '://' in resumed_from:
        own = own or is_below(resumed_from, out_dir)
    else:
        own = own or is_below(
            os.path.realpath(resumed_from), os.path.realpath(out_dir)
        )
    if not own:
        forgotten = [_name(info[key]) for key in keys if key != _LAST]
        for key in (*keys, _KEPT, OUTDATED):
            info.pop(key, None)
        return forgotten
    for key in keys:
        info[key] = _join(out_dir, _name(info[key]))
    for key in (_KEPT, OUTDATED):
        if key in info:
            # Numbers, which become part of names of files to remove.
            info[key] = [step for step in info[key] if isinstance(step, int)]
    return []
