"""Files of label maps and images in folders."""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    'IMAGE_SUFFIXES',
    'MASK_SUFFIXES',
    'files_below',
    'names_in',
    'stem_below',
]

MASK_SUFFIXES = ('.png', '.tif', '.tiff', '.bmp', '.gif')
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')


def files_below(
    folder: str | Path, suffixes: tuple[str, ...]
) -> Iterator[str]:
    """Files below a folder, in the order of their names.

    Args:
        folder: Looked into with all folders in it; one that is not there
            has none.
        suffixes: In lower case; those of the files may be in any.

    Yields:
        Paths that begin with ``folder``.
    """
    # Texts rather than Path: of 100,000 files these alone take seconds.
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(suffixes):
                yield os.path.join(parent, name)


def names_in(
    folder: str, suffixes: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Names of files and of folders in a folder, not of those below.

    Args:
        folder: One that is not there has none.
        suffixes: Of the files, in lower case; theirs may be in any.

    Returns:
        Both in order.
    """
    files, folders = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.lower().endswith(suffixes):
                    files.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
    except FileNotFoundError:
        return [], []
    return sorted(files), sorted(folders)


def stem_below(path: str, folder: str, suffix: str = '') -> str:
    """Name of a file in a folder, without that of the folder.

    Args:
        path: As :func:`files_below` gives it.
        folder: The same as there.
        suffix: Taken away from the end; else what follows the last dot.

    Returns:
        With ``/`` between the folders inside of ``folder``.

    Examples:
        >>> stem_below('data/a/b.c.png', 'data')
        'a/b.c'
        >>> stem_below('data/b_mask.png', 'data', '_mask.png')
        'b'
    """
    name = path[len(folder) :].lstrip(os.sep)
    if os.sep != '/':
        name = name.replace(os.sep, '/')
    if suffix and name.endswith(suffix):
        return name[: -len(suffix)]
    return os.path.splitext(name)[0]
