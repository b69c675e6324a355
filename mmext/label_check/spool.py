"""A list that is in a temporary file instead of the memory."""

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

__all__ = ['Spool']

_BLOCK = 1024


class Spool:
    """Rows of plain values, to be gone through again and again.

    The file has no name, and is gone with the object.

    Args:
        rows: Tuples of strings and numbers; gone through once, here.

    Examples:
        >>> rows = Spool([('a', 1), ('b', 2)])
        >>> list(rows), list(rows), len(rows)
        ([['a', 1], ['b', 2]], [['a', 1], ['b', 2]], 2)
    """

    def __init__(self, rows: Iterable[tuple]):
        self._number = 0
        # Where each block ends.
        self._ends: list[int] = []
        self._file, path = tempfile.mkstemp(prefix='mmext_')
        weakref.finalize(self, os.close, self._file)
        os.unlink(path)
        block: list[tuple] = []
        for row in rows:
            block.append(row)
            if len(block) == _BLOCK:
                self._write(block)
                block = []
        self._write(block)

    def _write(self, block: list[tuple]) -> None:
        packed = msgspec.msgpack.encode([_packable(row) for row in block])
        self._number += len(block)
        with os.fdopen(os.dup(self._file), 'wb') as file:
            file.write(packed)
        self._ends.append((self._ends or [0])[-1] + len(packed))

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[list[Any]]:
        """Rows in their order; several may go through them at a time."""
        begin = 0
        for end in self._ends:
            packed = os.pread(self._file, end - begin, begin)
            for row in msgspec.msgpack.decode(packed):
                yield [_text(value) for value in row]
            begin = end


def _packable(row: tuple) -> list:
    """Names of files need not be valid in UTF-8; these go as bytes."""
    return [
        os.fsencode(value)
        if isinstance(value, str) and not value.isascii()
        else value
        for value in row
    ]


def _text(value: Any) -> Any:
    return os.fsdecode(value) if isinstance(value, bytes) else value
