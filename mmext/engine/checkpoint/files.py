"""Find the newest whole checkpoint of a work dir."""

import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

from ...utils.archive import DamagedFileError, check_archive
from ...utils.files import retry_transient
from ...utils.safe_load import UntrustedTypeError
from .load import read_checkpoint
from .work_dir import read_last_checkpoint

# The temporary names of mmext.utils.files.atomic_path.
_LEFTOVER = re.compile(r'\..+\.\d+\.tmp(\.\w+)?')
_MAX_NAMES = 5
_MAX_POSITION = (1 << 63) - 1


class _NoTrainingError(ValueError):
    """A file has no training position: it holds only weights."""


@dataclass(frozen=True)
class CheckpointSummary:
    """What a checkpoint is, without its weights.

    ``run_id`` is that of the training which wrote it; empty if it does not
    say so, as those of MMEngine's runner.
    """

    path: Path
    iter: int
    epoch: int
    resumable: bool
    run_id: str = ''


@dataclass(frozen=True)
class SearchResult:
    """A checkpoint to resume from, what was passed over, and leftovers.

    ``unused`` says why the file that ``last_checkpoint`` names is not taken,
    and what to do, or why no checkpoint can be used if some are damaged. With
    ``unused`` and without ``checkpoint``, a training must not start anew.
    """

    checkpoint: str | None
    notes: list[str] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)
    unused: str = ''


def summarize_checkpoint(path: str | Path) -> CheckpointSummary:
    """Read the metadata of a local checkpoint, not its weights.

    Runs no code, whatever is trusted; ValueError if it would have to, if the
    metadata are damaged, or if there are none; OSError if it cannot be read.
    """
    try:
        check_archive(path, contents=False)
    except DamagedFileError as error:
        raise ValueError(
            f'checkpoint {str(path)!r} is damaged: {error}'
        ) from error
    checkpoint = read_checkpoint(path, mmap=True, trust=False, verify=False)
    meta = checkpoint.get('meta')
    if not isinstance(meta, Mapping) or 'iter' not in meta:
        raise _NoTrainingError(
            f'checkpoint {str(path)!r} must have a training position '
            "(meta['iter']), got none; it holds only weights"
        )
    position = {'iter': meta['iter'], 'epoch': meta.get('epoch', 0)}
    for name, value in position.items():
        is_number = isinstance(value, Integral) and type(value) is not bool
        if not is_number or not 0 <= value <= _MAX_POSITION:
            raise _NoTrainingError(
                f'checkpoint {str(path)!r}: meta[{name!r}] must be an integer '
                f'of 0 to {_MAX_POSITION}, got {reprlib.repr(value)}; take '
                'another checkpoint'
            )
    run_id = meta.get('run_id', '')
    return CheckpointSummary(
        path=Path(path),
        **position,
        resumable='optimizer' in checkpoint,
        run_id=run_id if isinstance(run_id, str) else '',
    )


def _find_below(target: str, folders: Sequence[Path]) -> Path | None:
    """A file that is called as ``target``, below one of the folders."""
    parts = [part for part in Path(target).parts if part not in ('/', '..')]
    for folder in folders:
        for start in range(len(parts)):
            path = folder.joinpath(*parts[start:])
            if _is_file(path):
                return path
    return None


def _is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # no name that a file can have
        return False


def _candidates(folders: Sequence[Path], pointed: Path | None) -> list[Path]:
    """Files that may be checkpoints, each once."""
    suffixes = {'.pth'}
    if pointed is not None and pointed.suffix:
        suffixes.add(pointed.suffix)
    files = [
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if path.suffix in suffixes
        and _is_file(path)
        and not _LEFTOVER.fullmatch(path.name)
    ]
    if pointed is not None:
        files.append(pointed)
    # A link to a checkpoint is that checkpoint.
    files.sort(key=lambda path: (path.is_symlink(), str(path)))
    once: dict[Path, Path] = {}
    for path in files:
        once.setdefault(path.resolve(), path)
    return list(once.values())


def find_newest_checkpoint(
    work_dir: str | Path, out_dir: str | Path | None = None
) -> SearchResult:
    """Find the checkpoint that a training should go on from.

    It is the one of the highest iteration, and then epoch, among the files of
    the work dir and of ``out_dir``; no clock plays a part. If there are those
    of several trainings, the one that wrote last is meant, which
    ``last_checkpoint`` knows. Files that are damaged, hold no optimizer or
    would have to be trusted are passed over.

    Of what ``last_checkpoint`` names, only the name counts: a work dir may
    have been copied, and its checkpoints are those that lie in it. An address
    that is not on this machine is believed.
    """
    work_dir = Path(work_dir)
    folders = [work_dir]
    if out_dir is not None and '://' not in str(out_dir):
        folders.append(Path(out_dir))
    target, problem = read_last_checkpoint(work_dir)
    notes = [problem] if problem else []
    if '://' in target:
        return SearchResult(target, notes)
    pointed = _find_below(target, folders) if target else None
    unused = ''
    if target and pointed is None and _is_file(target):
        unused = (
            f'last_checkpoint in {work_dir} names {target}, which is outside '
            'of the work dir; to go on from it, name it with --resume FILE'
        )
    elif target and pointed is None:
        notes.append(f'last_checkpoint names {target}, which is not a file')
    elif (
        os.path.isabs(target)
        and Path(target).parent.resolve() != pointed.parent.resolve()
    ):
        notes.append(
            f'last_checkpoint names {target}, and this work dir is another '
            f'one, such as a copy; here that is {pointed}'
        )
    faults: dict[str, str] = {}
    # Damaged and unreadable files, which may be checkpoints of this training.
    damaged: set[str] = set()
    summaries = []
    for path in _candidates(folders, pointed):
        try:
            summary = retry_transient(summarize_checkpoint, path)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and path == pointed:
                # It may be whole, and would be replaced.
                unused = (
                    f'{path} cannot be read ({error.strerror}); make it '
                    'readable, or name another checkpoint with --resume FILE'
                )
                return SearchResult(None, notes, unused=unused)
            whole = isinstance(error, (UntrustedTypeError, _NoTrainingError))
            if whole and path == pointed:
                unused = str(error)
                continue
            faults[path.name] = str(error)
            if not whole:
                damaged.add(path.name)
            continue
        if summary.resumable:
            summaries.append(summary)
    newest, corrupt = _newest_of(summaries, pointed, notes)
    faults |= corrupt
    damaged |= corrupt.keys()
    if newest is None and damaged and not unused:
        reasons = (f'{name}: {faults.pop(name)}' for name in sorted(damaged))
        unused = f'No checkpoint in {work_dir} can be used: '
        unused += '; '.join(reasons)
    rest = f'; going on from {newest.path.name}' if newest else ''
    if newest is not None and unused:
        notes.append(unused + rest)
    notes += [
        f'passed over {name}: {reason}{rest}'
        for name, reason in faults.items()
    ]
    leftovers = {
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if _LEFTOVER.fullmatch(path.name) and not path.is_dir()
    }
    return SearchResult(
        str(newest.path) if newest else None,
        notes,
        sorted(leftovers),
        unused,
    )


def _newest_of(
    summaries: Sequence[CheckpointSummary],
    pointed: Path | None,
    notes: list[str],
) -> tuple[CheckpointSummary | None, dict[str, str]]:
    """Checkpoint to go on from, and faults of others; extends ``notes``."""
    runs = {summary.run_id for summary in summaries if summary.path == pointed}
    same = [summary for summary in summaries if summary.run_id in runs]
    last = max((summary.iter for summary in same), default=None)
    ordered = sorted(
        summaries,
        key=lambda item: (
            item in same,
            # Of other trainings, first what this one may have begun with.
            last is None or item.iter <= last,
            item.iter,
            item.epoch,
            item.path == pointed,
            item.path.name,
        ),
        reverse=True,
    )
    newest, faults = None, {}
    for summary in ordered:
        try:
            retry_transient(check_archive, summary.path)
        except DamagedFileError as error:
            faults[summary.path.name] = f'it is damaged: {error}'
        except OSError as error:
            faults[summary.path.name] = f'it cannot be read: {error.strerror}'
        else:
            newest = summary
            break
    if newest is not None:
        others = [
            summary.path.name
            for summary in summaries
            if summary.run_id != newest.run_id and summary.iter > newest.iter
        ]
        if others:
            notes.append(
                f'{", ".join(sorted(others)[:_MAX_NAMES])} are of another '
                f'training in this folder and passed over; going on from '
                f'{newest.path.name}'
            )
    return newest, faults
