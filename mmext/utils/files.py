"""Write a file whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ['atomic_path']


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path that becomes ``path`` when the block succeeds.

    The temporary file lies in the same folder and keeps the suffix, so that
    writers that go by the suffix work. It is flushed to the disk before it
    takes the place of ``path``; when the block raises, it is removed and
    ``path`` is what it was. Missing folders are made.

    Args:
        path: The file to write or to replace.

    Yields:
        The path the block has to write to.

    Raises:
        FileNotFoundError: If the block wrote nothing.
        IsADirectoryError: If ``path`` is a directory.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder, 'a.txt')) as temporary:
        ...         _ = temporary.write_text('done')
        ...     Path(folder, 'a.txt').read_text(), len(os.listdir(folder))
        ('done', 1)
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f'path must be a file, got directory {path}')
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.stem}.{os.getpid()}.tmp{path.suffix}')
    try:
        yield temporary
        with open(temporary, 'rb') as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
