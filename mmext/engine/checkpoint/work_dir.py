"""The folder of a training: one training at a time, and its own files only.

MMEngine's checkpoint hook keeps absolute paths of the last and of the best
checkpoint in the message hub, and so in every checkpoint. A run that is
resumed in a copy of its work dir would take them, and in the end delete the
best checkpoint of the original. Here, checkpoints hold names; what is read
from one is put into the present folder by name, whatever it was.
"""

import json
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MessageHub, print_log

from ...utils.files import atomic_path, lock_file, retry_transient

LAST_CHECKPOINT = 'last_checkpoint'
# More than this is not a path.
_MAX_PATH_BYTES = 4096
_LOCK_FILE = 'training.lock'
# More than this is not the text of a lock.
_MAX_OWNER_CHARS = 512
_LAST, _BEST, _KEPT = 'last_ckpt', 'best_ckpt', 'keep_ckpt_ids'
# Steps of checkpoints that go when the one that says so is complete.
OUTDATED = 'outdated_ckpt_ids'


# One training at a time


class WorkDirError(RuntimeError):
    """The work dir cannot be used for a training."""


class WorkDirInUseError(WorkDirError):
    """Another training writes into the work dir."""


@contextmanager
def work_dir_lock(
    work_dir: str | Path, written: Iterable[Path] = ()
) -> Iterator[None]:
    """Hold ``work_dir/training.lock``, which names this process and its host.

    The lock is one of the operating system, see
    :func:`~mmext.utils.files.lock_file`. The file goes when the lock does; one
    of a process that was killed stays, and is taken over. On a file system
    without locks, a warning says that nothing stops a second training.

    Args:
        work_dir: Folder that exists.
        written: Files that the training is going to replace.

    Raises:
        WorkDirInUseError: If another process holds it. Its number, host and
            start are named.
        WorkDirError: If a folder, a pipe or a device has the name of a file
            that the training writes.
    """
    path = Path(work_dir) / _LOCK_FILE
    # Behind a link would be a file of somebody else, to be emptied.
    wrong = [path] if path.is_symlink() else []
    wrong += [
        file
        for file in (path, *written)
        if os.path.exists(file) and not os.path.isfile(file)
    ]
    if wrong:
        raise WorkDirError(
            f'{wrong[0]} must be a regular file, as the training writes it, '
            f'got {_kind(wrong[0])}; remove it, or choose another --work-dir'
        )
    with _locked(path) as file:
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
            # While it is held: the file of no other training is removed.
            retry_transient(path.unlink, missing_ok=True)


def _kind(path: Path) -> str:
    if path.is_symlink():
        return 'a symbolic link'
    return 'a folder' if path.is_dir() else 'a pipe, socket or device'


@contextmanager
def _locked(path: Path) -> Iterator[IO]:
    while True:
        try:
            file = retry_transient(open, path, 'a+')
        except OSError as error:
            raise WorkDirError(
                f'{path} cannot be opened ({error.strerror}); remove it, or '
                'choose another --work-dir'
            ) from error
        with file:
            try:
                missing = lock_file(file)
            except BlockingIOError as error:
                owner = _owner(path)
                raise WorkDirInUseError(
                    f'work_dir {path.parent} is in use by another training'
                    + (f': {owner}' if owner else '')
                    + '. Give this one a --work-dir of its own, or wait until '
                    'that one has ended'
                ) from error
            if _is_file_at(file, path):
                if missing:
                    _warn_of_missing_lock(path, missing)
                yield file
                return


def _is_file_at(file: IO, path: Path) -> bool:
    """Else its owner has removed it in between."""
    try:
        there = retry_transient(os.stat, path)
        return os.path.samestat(os.fstat(file.fileno()), there)
    except FileNotFoundError:
        return False


def _warn_of_missing_lock(path: Path, reason: str) -> None:
    owner = _owner(path)
    print_log(
        f'{path.parent} cannot be locked ({reason}): a second training in it '
        'would replace the checkpoints of this one, and neither would notice. '
        'Start one training at a time in this folder'
        + (f'; {_LOCK_FILE} names {owner}' if owner else ''),
        'current',
        logging.WARNING,
    )


def _owner(path: Path) -> str:
    """Process that a lock file names; empty if it names none."""
    try:
        with path.open() as file:
            owner = json.loads(file.read(_MAX_OWNER_CHARS))
        return (
            f'process {owner["pid"]} on {owner["host"]}, since '
            f'{owner["since"]}'
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ''


# The last checkpoint


def write_last_checkpoint(work_dir: str | Path, checkpoint: str) -> None:
    """Note in a work dir which checkpoint, a path or address, is the last.

    The path is absolute, as MMEngine takes it for one of the current folder.
    mmext goes by the name in it; see ``find_newest_checkpoint``.
    """
    if '://' not in checkpoint:
        checkpoint = os.path.abspath(checkpoint)
    with atomic_path(Path(work_dir, LAST_CHECKPOINT)) as temporary:
        temporary.write_bytes(os.fsencode(checkpoint))


def read_last_checkpoint(work_dir: str | Path) -> tuple[str, str]:
    """Return the path or address in ``last_checkpoint``, and what is wrong.

    Both are empty if there is no such file.
    """
    path = Path(work_dir, LAST_CHECKPOINT)
    if not os.path.isfile(path):
        exists = os.path.lexists(path)
        return '', f'{LAST_CHECKPOINT} is not a file' if exists else ''
    try:
        with retry_transient(open, path, 'rb') as file:
            content = file.read(_MAX_PATH_BYTES + 1)
    except OSError as error:
        return '', f'{LAST_CHECKPOINT} cannot be read ({error.strerror})'
    target = os.fsdecode(content).strip()
    if not target:
        return '', f'{LAST_CHECKPOINT} is empty'
    if len(content) > _MAX_PATH_BYTES or not target.isprintable():
        return '', f'{LAST_CHECKPOINT} does not hold a path'
    return target, ''


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
