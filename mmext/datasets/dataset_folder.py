"""What the generated data sets share: their folder, checks of settings."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from ..utils.files import new_tree


def check_number(
    name: str, value: float, low: float, high: float, *, integer: bool = True
) -> None:
    """Raise TypeError or ValueError unless a setting is in a range."""
    if integer and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f'{name} must be an integer, got {value!r}')
    if not low <= value <= high:
        raise ValueError(f'{name} must be in [{low}, {high}], got {value}')


def check_size(image_size: tuple[int, int], low: int, high: int) -> None:
    """Raise TypeError or ValueError unless it is W and H in a range."""
    if len(image_size) != 2:
        raise ValueError(f'image_size must be (W, H), got {image_size}')
    for side in image_size:
        check_number('image_size', side, low, high)


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


def new_dataset_folder(
    out: str | os.PathLike, marker: str, *, overwrite: bool = False
) -> AbstractContextManager[Path]:
    """Give an empty folder that becomes ``out`` when the block succeeds.

    After an error, Ctrl-C included, ``out`` is what it was before; ``kill
    -9`` leaves a hidden folder next to it. Files are not flushed to the disk
    one by one: after a power failure, generate again.

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
    if target.exists() and not target.is_dir():
        raise FileExistsError(
            f'out must be a folder, got the file {str(target)!r}'
        )
    if target.is_dir() and any(target.iterdir()):
        if not overwrite:
            raise FileExistsError(
                f'out must not exist or be empty, got {str(target)!r}, which '
                'holds files; choose another folder or pass overwrite '
                '(--overwrite) to replace it'
            )
        if not (target / marker).is_file():
            raise FileExistsError(
                f'out must be a generated set to be overwritten, got '
                f'{str(target)!r}, which has no {marker}; choose another '
                'folder or remove this one yourself'
            )
    return new_tree(target, replace=True)
