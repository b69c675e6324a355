"""MMEngine's backend for local files, without those that never end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

from .files import require_regular_file


@register_backend('local', force=True, prefixes='')
class RegularFileBackend(LocalBackend):
    """Reads regular files only; OSError for a FIFO, a socket or a device.

    A data set's images, label maps and annotations are read through it once
    this module is imported, in processes of data loaders, too. Opening a
    FIFO waits for a writer, and ``/dev/zero`` is read until memory ends.
    """

    def get(self, filepath: str | Path) -> bytes:
        """Content of a file."""
        require_regular_file(filepath)
        return super().get(filepath)

    def get_text(self, filepath: str | Path, encoding: str = 'utf-8') -> str:
        """Content of a text file."""
        require_regular_file(filepath)
        return super().get_text(filepath, encoding)

    @contextmanager
    def get_local_path(self, filepath: str | Path) -> Iterator[str | Path]:
        """The path itself."""
        require_regular_file(filepath)
        with super().get_local_path(filepath) as path:
            yield path

    def list_dir_or_file(
        self,
        dir_path: str | Path,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: str | tuple[str, ...] | None = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        """Names below a folder; OSError if one would be left out in silence.

        MMEngine lists regular files and passes over others.
        """
        if list_file:
            _refuse_special_files(dir_path, suffix or '', recursive)
        yield from super().list_dir_or_file(
            dir_path, list_dir, list_file, suffix, recursive
        )


def _refuse_special_files(
    folder: str | Path, suffix: str | tuple[str, ...], recursive: bool
) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith('.') or entry.is_file():
                continue
            if entry.is_dir():
                if recursive:
                    _refuse_special_files(entry.path, suffix, recursive)
            elif entry.name.endswith(suffix):
                require_regular_file(entry.path)
