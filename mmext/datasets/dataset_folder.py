"""The folder of a generated data set: made as a whole, or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_counts(num_train: int, num_val: int) -> dict[str, int]:
    """Samples by split.

    Raises:
        ValueError: If a count is negative, or both are 0.
    """
    counts = {'train': num_train, 'val': num_val}
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f'num_{name} must be at least 0, got {count}')
    if num_train + num_val == 0:
        raise ValueError('num_train or num_val must be positive, got 0 and 0')
    return counts


def _check_target(target: Path, marker: str, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise FileExistsError(
            f'out must be a folder, got the file {str(target)!r}'
        )
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not overwrite:
        raise FileExistsError(
            f'out must not exist or be empty, got {str(target)!r}, which '
            'holds files; choose another folder or pass overwrite '
            '(--overwrite) to replace it'
        )
    if not (target / marker).is_file():
        raise FileExistsError(
            f'out must be a generated set to be overwritten, got '
            f'{str(target)!r}, which has no {marker}; choose another folder '
            'or remove this one yourself'
        )


def _swap_in(new: Path, target: Path, old: Path) -> None:
    """Put the folder ``new`` at ``target``; what was there goes to ``old``."""
    try:
        if target.exists():
            os.replace(target, old)
        os.replace(new, target)
    except BaseException:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise


@contextmanager
def new_dataset_folder(
    out: str | os.PathLike, marker: str, *, overwrite: bool = False
) -> Iterator[Path]:
    """Give an empty folder that becomes ``out`` when the block succeeds.

    It is made in a hidden folder next to ``out``. After an error, Ctrl-C
    included, that is removed and ``out`` is what it was before; ``kill -9``
    leaves the hidden folder. A set being overwritten is replaced by two
    renames; only between these two is ``out`` missing. Files are not flushed
    to the disk one by one: after a power failure, generate again.

    Args:
        out: Folder of the set. Missing parents are made.
        marker: Name of the file that marks a folder as generated; the block
            must write it.
        overwrite: Replace a set that was generated earlier.

    Raises:
        FileExistsError: If ``out`` is a file, or holds files and
            ``overwrite`` is off, or holds files and no marker.
    """
    target = Path(out).resolve()
    _check_target(target, marker, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The set is a folder inside the temporary one, which is always 0700.
    work = Path(tempfile.mkdtemp(prefix=f'.{target.name}.', dir=target.parent))
    try:
        new = work / 'new'
        new.mkdir()
        yield new
        _swap_in(new, target, work / 'old')
    finally:
        shutil.rmtree(work)
