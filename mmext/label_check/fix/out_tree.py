"""The folder that repaired files are written to."""

import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ['check_out', 'common_folder', 'new_tree', 'relative_to']


def _parts(path: str) -> tuple[str, ...]:
    """Names of a path from its root on, for a URL from its scheme on."""
    scheme, mark, rest = path.partition('://')
    if not mark:
        return Path(os.path.abspath(path)).parts
    return (scheme + mark, *posixpath.normpath(rest).split('/'))


def _joined(parts: tuple[str, ...]) -> str:
    if parts and parts[0].endswith('://'):
        return parts[0] + '/'.join(parts[1:])
    return str(Path(*parts)) if parts else ''


def common_folder(folders: Iterable[str]) -> str:
    """The deepest folder that holds all others.

    Args:
        folders: Paths or URLs.

    Returns:
        Its path or URL; empty for no folders.

    Raises:
        ValueError: If there is none, as for a path and a URL.

    Examples:
        >>> common_folder(['s3://data/masks/train', 's3://data/masks/val'])
        's3://data/masks'
    """
    common: tuple[str, ...] | None = None
    for folder in folders:
        parts = _parts(folder)
        common = parts if common is None else common
        same = sum(1 for _ in iter_while_equal(common, parts))
        if not same:
            raise ValueError(
                'label files of a run must have a folder in common, got '
                f'{_joined(common)!r} and {folder!r}; repair one at a time'
            )
        common = common[:same]
    return _joined(common or ())


def iter_while_equal(
    one: Iterable[str], other: Iterable[str]
) -> Iterator[str]:
    """Elements as long as they are equal."""
    for first, second in zip(one, other):
        if first != second:
            return
        yield first


def relative_to(path: str, folder: str) -> str:
    """Where a file is to be in a new tree.

    Args:
        path: Of the file, below ``folder``.
        folder: Of :func:`common_folder`.

    Examples:
        >>> relative_to('s3://data/masks/val/1.png', 's3://data/masks')
        'val/1.png'
    """
    return '/'.join(_parts(path)[len(_parts(folder)) :])


def check_out(out: Path, folders: Iterable[str]) -> None:
    """Refuse a folder that holds something, or mixes with the data.

    Args:
        out: The folder that is to be made.
        folders: Those that data files are in; URLs are passed by.

    Raises:
        FileExistsError: If ``out`` is there and is not an empty folder.
        ValueError: If it is in one of ``folders``, or one of them in it.
    """
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(
            f'--fix must name a folder that is not there, or an empty one, '
            f'got {str(out)!r}; nothing is ever overwritten'
        )
    real = Path(os.path.realpath(out))
    for name in folders:
        if '://' in name:
            continue
        folder = Path(os.path.realpath(name))
        if real == folder or folder in real.parents or real in folder.parents:
            raise ValueError(
                '--fix must be apart from the data, got '
                f'{str(out)!r} and the data folder {name!r}'
            )


@contextmanager
def new_tree(out: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes ``out`` when the block succeeds.

    It lies beside ``out``. When the block raises, it is removed.

    Args:
        out: Not there, or an empty folder; missing folders above are made.

    Yields:
        The folder to write to.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with new_tree(Path(folder, 'new')) as tree:
        ...         _ = (tree / 'a.txt').write_text('done')
        ...     os.listdir(folder), os.listdir(Path(folder, 'new'))
        (['new'], ['a.txt'])
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    holder = tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent)
    try:
        # mkdtemp lets nobody else in.
        tree = Path(holder, 'tree')
        tree.mkdir()
        yield tree
        os.replace(tree, out)
    finally:
        shutil.rmtree(holder)
