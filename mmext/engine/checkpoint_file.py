"""Read checkpoints, and find the newest complete one of a work dir."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mmengine.runner.checkpoint import (
    CheckpointLoader,
    get_torch_safe_globals,
)

__all__ = [
    'CheckpointSummary',
    'SearchResult',
    'find_newest_checkpoint',
    'read_checkpoint',
    'remove_leftovers',
    'summarize_checkpoint',
]

# What torch.load raises for files that are cut off, damaged, or no
# checkpoints at all.
_READ_ERRORS = (
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
# The temporary names of mmext.utils.files.atomic_path.
_LEFTOVER = re.compile(r'\..+\.\d+\.tmp(\.\w+)?')


@dataclass(frozen=True)
class CheckpointSummary:
    """What a checkpoint is, without its weights.

    Args:
        path: The file.
        iter: Iterations trained.
        epoch: Epochs finished.
        time: When it was written, ``YYYYmmdd_HHMMSS``.
        resumable: Holds an optimizer, so that a training can go on from it.
    """

    path: Path
    iter: int
    epoch: int
    time: str
    resumable: bool


@dataclass(frozen=True)
class SearchResult:
    """Outcome of a search for a checkpoint to resume from.

    Args:
        checkpoint: The one found: a path, or the address of a file that is
            not on this machine. None if there is none.
        notes: What was passed over and why, one sentence each.
        leftovers: Temporary files of a write that was interrupted.
    """

    checkpoint: str | None
    notes: list[str] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)


def _torch_load(path: Path, mmap: bool) -> Any:
    if not zipfile.is_zipfile(path):
        # Torch's old format, which cannot be mapped, or something else.
        mmap = False
    options = {'map_location': 'cpu', 'mmap': mmap}
    if not hasattr(torch.serialization, 'safe_globals'):  # PyTorch 2.4
        return torch.load(path, weights_only=False, **options)
    try:
        with torch.serialization.safe_globals(get_torch_safe_globals()):
            return torch.load(path, weights_only=True, **options)
    except pickle.UnpicklingError:
        # Old checkpoints hold whole objects in their metadata. MMEngine's
        # loader does the same.
        return torch.load(path, weights_only=False, **options)


def _is_remote(path: str) -> bool:
    return '://' in path


def read_checkpoint(path: str | Path, *, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint into memory, on the CPU.

    Args:
        path: A file, or any address that MMEngine can load from.
        mmap: Leave the weights on the disk until they are used.

    Returns:
        The checkpoint. Bare weights come as they are, without ``state_dict``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file cannot be read, or holds no dict.

    Note:
        A checkpoint can run code when it is read. Open only files from
        people you trust.
    """
    if _is_remote(str(path)):
        checkpoint = CheckpointLoader.load_checkpoint(str(path), 'cpu')
    else:
        file = Path(path).expanduser()
        if not file.is_file():
            what = 'a folder' if file.is_dir() else 'no such file'
            raise FileNotFoundError(
                f'checkpoint must be an existing file, got {str(path)!r} '
                f'({what}, looked from {Path.cwd()})'
            )
        try:
            checkpoint = _torch_load(file, mmap)
        except _READ_ERRORS as error:
            raise ValueError(
                f'checkpoint {str(path)!r} cannot be read: it is damaged, cut '
                f'off or no PyTorch checkpoint ({file.stat().st_size} bytes; '
                f'{type(error).__name__}: {str(error).strip()[:200]}); copy '
                'or download it again, or take another one'
            ) from error
    if not isinstance(checkpoint, Mapping):
        raise ValueError(
            f'checkpoint {str(path)!r} must hold a dict, got '
            f'{type(checkpoint).__name__}'
        )
    return checkpoint


def summarize_checkpoint(path: str | Path) -> CheckpointSummary:
    """Tell what a checkpoint is. Reads its metadata, not its weights.

    Args:
        path: A local file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be read, for example because it was cut off,
            or if it has no training position.
    """
    checkpoint = read_checkpoint(path, mmap=True)
    meta = checkpoint.get('meta')
    if not isinstance(meta, Mapping) or 'iter' not in meta:
        raise ValueError(
            f'checkpoint {str(path)!r} must have a training position '
            "(meta['iter']), got none; it holds only weights"
        )
    return CheckpointSummary(
        path=Path(path),
        iter=int(meta['iter']),
        epoch=int(meta.get('epoch', 0)),
        time=str(meta.get('time', '')),
        resumable='optimizer' in checkpoint,
    )


def _pointed_to(work_dir: Path, notes: list[str]) -> str | None:
    """What ``last_checkpoint`` names, if it is there and says something."""
    pointer = work_dir / 'last_checkpoint'
    if not pointer.is_file():
        return None
    target = pointer.read_text(errors='replace').strip()
    if not target:
        notes.append('last_checkpoint is empty')
        return None
    if not _is_remote(target) and not Path(target).is_file():
        # The work dir may have been moved as a whole.
        moved = work_dir / Path(target).name
        notes.append(f'last_checkpoint names {target}, which does not exist')
        return str(moved) if moved.is_file() else None
    return target


def find_newest_checkpoint(work_dir: str | Path) -> SearchResult:
    """Find the checkpoint that a training should go on from.

    It is the one written last, by the time noted inside, among the ``*.pth``
    files of the work dir and, where checkpoints are kept elsewhere, of the
    folder that ``last_checkpoint`` points to. Files that are damaged or hold
    no optimizer are passed over. The pointer itself decides only if it names
    a file that is not on this machine.

    Args:
        work_dir: Folder of the run. It need not exist.

    Examples:
        >>> find_newest_checkpoint('no/such/folder').checkpoint is None
        True
    """
    work_dir = Path(work_dir)
    notes: list[str] = []
    target = _pointed_to(work_dir, notes)
    if target and _is_remote(target):
        return SearchResult(target, notes)
    folders = {work_dir.resolve()}
    if target:
        folders.add(Path(target).resolve().parent)
    files = [path for folder in folders for path in folder.glob('*.pth')]
    leftovers = [
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if _LEFTOVER.fullmatch(path.name)
    ]
    found = []
    for path in sorted(set(files) - set(leftovers)):
        try:
            summary = summarize_checkpoint(path)
        except ValueError as error:
            notes.append(f'passed over {path.name}: {error}')
            continue
        if summary.resumable:
            found.append(summary)
    # The time inside survives a copy, but has seconds only.
    newest = max(
        found,
        key=lambda item: (
            item.time,
            item.iter,
            item.epoch,
            item.path.stat().st_mtime_ns,
        ),
        default=None,
    )
    return SearchResult(
        str(newest.path) if newest else None, notes, sorted(leftovers)
    )


def remove_leftovers(leftovers: list[Path]) -> None:
    """Remove temporary files of interrupted writes.

    Args:
        leftovers: As found by :func:`find_newest_checkpoint`.
    """
    for path in leftovers:
        path.unlink(missing_ok=True)
