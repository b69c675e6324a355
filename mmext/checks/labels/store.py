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
_WRITE = 'INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?)'


def _key(path: str) -> bytes:
    """Path as it is stored; names need not be valid text."""
    return path.encode('utf-8', 'surrogateescape')


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
        ...         store.facts([('a.png', 'mask'), ('b.png', 'mask')])
        [b'...', None]
    """

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

    def stamps(
        self, files: Iterable[tuple[str, str]]
    ) -> list[tuple[str, str] | None]:
        """Reader and stamp of files, by path and kind; None if not stored."""
        return [
            row and row[2:] for row in self._select('reader, stamp', files)
        ]

    def facts(self, files: Iterable[tuple[str, str]]) -> list[bytes | None]:
        """Packed facts of files, by path and kind; None if not stored."""
        return [row and row[2] for row in self._select('facts', files)]

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
        self, columns: str, files: Iterable[tuple[str, str]]
    ) -> Iterator[tuple | None]:
        """Path, kind and columns of each file; None if it is not there."""
        for chunk in chunks(files, _KEYS_A_QUERY):
            keys = [(_key(path), kind) for path, kind in chunk]
            marks = ','.join('?' * len(keys))
            query = (
                f'SELECT path, kind, {columns} FROM facts '
                f'WHERE path IN ({marks})'
            )
            rows = self._db.execute(query, [path for path, _ in keys])
            row_of = {row[:2]: row for row in rows}
            yield from map(row_of.get, keys)
