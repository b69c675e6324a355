"""Facts of files, kept on disk from one run to the next.

An SQLite file: the standard library has it, rows are written as they come
and survive kill -9. A column store such as DuckDB or Parquet would need a
dependency, and is made for large writes and scans over columns, while a
check writes small batches and asks for single files.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from .work import Result

# 'mmLC', big-endian: says in the header of the file that it is ours.
APPLICATION_ID = 0x6D6D4C43
# Files of other versions are made anew.
SCHEMA_VERSION = 4
_MAGIC = b'SQLite format 3\x00'
_TABLE = """
CREATE TABLE facts (
    path BLOB NOT NULL, kind TEXT NOT NULL, reader TEXT NOT NULL,
    stamp TEXT NOT NULL, facts BLOB NOT NULL,
    PRIMARY KEY (path, kind)
) WITHOUT ROWID
"""
# SQLite before 3.32 takes 999 parameters.
_KEYS_A_QUERY = 900
# Rows that may lie between those that are asked for; after a query that met
# more, so many are not tried that way.
_FEW_MORE = 3
_TRY_AGAIN = 30
_WRITE = 'INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?)'


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A row of the store without its facts; see :class:`Result`."""

    reader: str
    stamp: str


def _key(path: str) -> bytes:
    """Path as it is stored; names need not be valid text."""
    return path.encode('utf-8', 'surrogateescape')


def _path(key: bytes) -> str:
    return key.decode('utf-8', 'surrogateescape')


def chunks(items: Iterable, size: int) -> Iterator[list]:
    """Lists of ``size`` items; the last may be shorter."""
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


class FactStore:
    """Facts of files by path and kind, in one SQLite file.

    Usable as a context manager. Several processes may read a store while one
    writes it; a second writer waits for up to half a minute.

    Args:
        path: File; made if it is not there, and anew if it is of another
            version.

    Raises:
        ValueError: If the file is not a store.
        FileNotFoundError: If the folder does not exist.

    Note:
        Every write is one transaction: killing the process loses none that
        has returned. A loss of power may lose the last ones, and never
        leaves half of one. The file must be on a disk of this machine:
        SQLite's write-ahead log does not work over a network.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> row = Result(path='a.png', kind='mask', reader='1', stamp='9',
        ...              facts=b'...')
        >>> with TemporaryDirectory() as folder:
        ...     with FactStore(f'{folder}/facts.db') as store:
        ...         store.write([row])
        ...         store.facts('mask', ['a.png', 'b.png'])
        [b'...', None]
    """

    # Queries to go until neighbours are tried again.
    _scattered = 0

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f'the folder of the store must exist, got {self.path.parent}'
            )
        # SQLite takes a file of a few bytes for an empty one, and fills it.
        if self.path.is_file():
            with self.path.open('rb') as file:
                start = file.read(len(_MAGIC))
            if start not in (b'', _MAGIC):
                raise ValueError(self._refusal('file is not a database'))
        uri = self.path.absolute().as_uri()
        self._db = sqlite3.connect(
            f'{uri}?mode=rwc', uri=True, timeout=30, isolation_level=None
        )
        try:
            self._open()
        except (sqlite3.DatabaseError, ValueError) as error:
            self._db.close()
            if isinstance(error, (sqlite3.OperationalError, ValueError)):
                raise
            raise ValueError(self._refusal(str(error))) from error

    def __enter__(self) -> 'FactStore':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; all that was written is in it."""
        self._db.close()

    def __len__(self) -> int:
        return self._value('SELECT count(*) FROM facts')

    def _value(self, query: str) -> int:
        return self._db.execute(query).fetchone()[0]

    def _refusal(self, reason: str) -> str:
        return (
            f'{self.path} must be a store of label checks, got a file that '
            f'is none ({reason}); give another path, or move the file away'
        )

    def _version(self) -> int:
        """Version of the file, 0 if it is still empty; raise if not ours."""
        ours = self._value('PRAGMA application_id')
        version = self._value('PRAGMA user_version')
        tables = self._value('SELECT count(*) FROM sqlite_master')
        if (ours or version or tables) and ours != APPLICATION_ID:
            raise ValueError(
                self._refusal(f'application id {ours}, {tables} tables')
            )
        return version

    def _open(self) -> None:
        """Check the file, and make it one of this version."""
        version = self._version()
        self._db.execute('PRAGMA journal_mode = WAL')
        self._db.execute('PRAGMA synchronous = NORMAL')
        if version == SCHEMA_VERSION:
            return
        with self._db:
            self._db.execute('BEGIN IMMEDIATE')
            # Another process may have been faster.
            if self._version() != SCHEMA_VERSION:
                self._db.execute('DROP TABLE IF EXISTS facts')
                self._db.execute(_TABLE)
                self._db.execute(f'PRAGMA application_id = {APPLICATION_ID}')
                self._db.execute(f'PRAGMA user_version = {SCHEMA_VERSION}')

    def stored(self, kind: str, paths: Iterable[str]) -> list[Stored | None]:
        """Rows of files of one kind, without facts; None if not stored."""
        rows = self._select('reader, stamp', kind, paths)
        return [row and Stored(*row[2:]) for row in rows]

    def facts(self, kind: str, paths: Iterable[str]) -> list[bytes | None]:
        """Packed facts of files of one kind, None for one not stored."""
        return [row and row[2] for row in self._select('facts', kind, paths)]

    def write(self, results: Sequence[Result]) -> None:
        """Write results in one transaction, over those of the same files.

        Without facts, what is stored still holds.
        """
        rows = [
            (_key(r.path), r.kind, r.reader, r.stamp, r.facts)
            for r in results
            if r.facts
        ]
        with self._db:
            self._db.execute('BEGIN IMMEDIATE')
            self._db.executemany(_WRITE, rows)

    def _select(
        self, columns: str, kind: str, paths: Iterable[str]
    ) -> Iterator[tuple | None]:
        """Path, kind and columns of each file; None if it is not there."""
        for keys in chunks(map(_key, paths), _KEYS_A_QUERY):
            query = f'SELECT path, kind, {columns} FROM facts WHERE '
            rows = self._neighbours(query, keys)
            if rows is None:
                marks = ','.join('?' * len(keys))
                query += f'kind = ? AND path IN ({marks})'
                rows = self._db.execute(query, (kind, *keys)).fetchall()
            row_of = {row[0]: row for row in rows if row[1] == kind}
            yield from map(row_of.get, keys)

    def _neighbours(self, query: str, keys: list[bytes]) -> list | None:
        """All rows from the first to the last path, if these are not many.

        Files that are named one after another mostly are neighbours, and to
        go from row to row takes a third of the time of looking up each.
        """
        if self._scattered:
            self._scattered -= 1
            return None
        limit = _FEW_MORE * len(keys)
        query += 'path BETWEEN ? AND ? LIMIT ?'
        rows = self._db.execute(query, (min(keys), max(keys), limit))
        rows = rows.fetchall()
        if len(rows) < limit:
            return rows
        self._scattered = _TRY_AGAIN
        return None


class TemporaryRows:
    """Texts, numbers and None in rows, on disk; gone with the object.

    Memory does not depend on the number of rows: they are in a temporary
    database of SQLite.
    """

    def __init__(self, width: int) -> None:
        self._db = sqlite3.connect('', isolation_level=None)
        names = ', '.join(f'c{number}' for number in range(width))
        self._db.execute(f'CREATE TABLE rows ({names})')
        self._insert = f'INSERT INTO rows VALUES ({", ".join("?" * width)})'

    def extend(self, rows: Iterable[tuple]) -> None:
        """Add rows, any number; do not iterate meanwhile."""
        with self._db:
            self._db.execute('BEGIN')
            self._db.executemany(self._insert, map(_packed, rows))

    def __len__(self) -> int:
        return self._db.execute('SELECT count(*) FROM rows').fetchone()[0]

    def __iter__(self) -> Iterator[tuple]:
        """Rows in their order; several may go through them at a time."""
        return map(_unpacked, self._db.execute('SELECT * FROM rows'))

    def at(self, number: int) -> tuple:
        """Row of a number, counted from 0."""
        query = 'SELECT * FROM rows WHERE rowid = ?'
        return _unpacked(self._db.execute(query, (number + 1,)).fetchone())


def _packed(row: tuple) -> list:
    """Names of files need not be valid text: texts are stored as bytes."""
    return [_key(cell) if isinstance(cell, str) else cell for cell in row]


def _unpacked(row: tuple) -> tuple:
    return tuple(
        _path(cell) if isinstance(cell, bytes) else cell for cell in row
    )
