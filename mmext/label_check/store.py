"""Facts of files, kept on disk from one run to the next.

An SQLite file: the standard library has it, rows are written as they come
and survive kill -9. A column store such as DuckDB or Parquet would need a
dependency, and is made for large writes and scans over columns, while a
check writes small batches and asks for single files.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any

import msgspec

from .work import Result

__all__ = ['FactStore', 'Stored', 'merge_stores']

# 'mmLC', big-endian: says in the header of the file that it is ours.
APPLICATION_ID = 0x6D6D4C43
SCHEMA_VERSION = 1
# SQLite before 3.32 takes 999 parameters.
_KEYS_A_QUERY = 900
_TABLE = """
CREATE TABLE facts (
    path BLOB NOT NULL, kind TEXT NOT NULL, reader TEXT NOT NULL,
    stamp TEXT NOT NULL, failed INTEGER NOT NULL, facts BLOB NOT NULL,
    PRIMARY KEY (path, kind)
) WITHOUT ROWID
"""
_WRITE = 'INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?, ?)'


class Stored(msgspec.Struct, frozen=True):
    """A row of the store without its facts.

    Attributes:
        reader: Version and options of the reader that gave the facts.
        stamp: What the file was then; empty for facts to be read anew.
        failed: Whether the facts have an error.
    """

    reader: str
    stamp: str
    failed: bool


def _key(path: str) -> bytes:
    """Path as it is stored; names need not be valid text."""
    return path.encode('utf-8', 'surrogateescape')


def _path(key: bytes) -> str:
    return key.decode('utf-8', 'surrogateescape')


def _chunks(items: Iterable, size: int) -> Iterator[list]:
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


class FactStore:
    """Facts of files by path and kind, in one file.

    Usable as a context manager. Several processes may read a store while one
    writes it; a second writer waits for up to half a minute.

    Args:
        path: File; made if it is not there, unless ``read_only``.
        read_only: Raise for every write.

    Raises:
        ValueError: If the file is not a store, or one of another version.
        FileNotFoundError: If ``read_only`` and there is no file; or the
            folder does not exist.

    Note:
        Every write is one transaction: killing the process loses none that
        has returned. A loss of power may lose the last ones, and never
        leaves half of one. The file must be on a disk of this machine:
        SQLite's write-ahead log does not work over a network. Of a cluster,
        each shard writes its own, for :func:`merge_stores`.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> row = Result(path='a.png', kind='mask', reader='1', stamp='9',
        ...              facts=b'...', failed=False)
        >>> with TemporaryDirectory() as folder:
        ...     with FactStore(f'{folder}/facts.db') as store:
        ...         store.write([row])
        ...         store.facts('mask', ['a.png', 'b.png'])
        {'a.png': b'...'}
    """

    def __init__(self, path: str | Path, *, read_only: bool = False):
        self.path = Path(path)
        self.read_only = read_only
        if read_only and not self.path.is_file():
            raise FileNotFoundError(f'there is no store at {self.path}')
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f'the folder of the store must exist, got {self.path.parent}'
            )
        uri = self.path.absolute().as_uri()
        self._db = sqlite3.connect(
            f'{uri}?mode={"ro" if read_only else "rwc"}',
            uri=True,
            timeout=30,
            isolation_level=None,
        )
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._db.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise ValueError(self._refusal(str(error))) from error
        except ValueError:
            self._db.close()
            raise

    def __enter__(self) -> 'FactStore':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return self._value('SELECT count(*) FROM facts')

    def close(self) -> None:
        """Close the file; all that was written is in it."""
        self._db.close()

    def stored(self, kind: str, paths: Iterable[str]) -> dict[str, Stored]:
        """Look up files, without their facts.

        Args:
            kind: Of all of them.
            paths: Any number.

        Returns:
            Path -> row, of those that are stored.
        """
        rows = self._select('reader, stamp, failed', kind, paths)
        return {
            path: Stored(reader, stamp, bool(failed))
            for path, reader, stamp, failed in rows
        }

    def facts(self, kind: str, paths: Iterable[str]) -> dict[str, bytes]:
        """Look up the packed facts of files.

        Args:
            kind: Of all of them.
            paths: Any number that may be in memory.

        Returns:
            Path -> packed facts, of those that are stored.
        """
        return dict(self._select('facts', kind, paths))

    def missing(
        self, kind: str, reader: str, stamps: dict[str, str]
    ) -> list[str]:
        """Tell which files must be read.

        Args:
            kind: Of all of them.
            reader: Version and options of the reader.
            stamps: Path -> stamp of the file as it is now; an empty stamp
                is never the same.

        Returns:
            Paths, in the order of ``stamps``.
        """
        rows = self.stored(kind, stamps)
        return [
            path
            for path, stamp in stamps.items()
            if not stamp
            or (row := rows.get(path)) is None
            or (row.reader, row.stamp) != (reader, stamp)
        ]

    def rows(self, kind: str = '') -> Iterator[Result]:
        """Give all that is stored, in the order of path and kind.

        Rows are read as they are asked for; the store may be written
        meanwhile.

        Args:
            kind: Only those of this kind; empty for all.
        """
        last = (b'', '')
        only = 'AND kind = ?' if kind else ''
        query = (
            'SELECT * FROM facts WHERE (path, kind) > (?, ?) '
            f'{only} ORDER BY path, kind LIMIT 500'
        )
        more = (kind,) if kind else ()
        while found := self._db.execute(query, (*last, *more)).fetchall():
            last = found[-1][:2]
            for path, of_kind, reader, stamp, failed, facts in found:
                yield Result(
                    path=_path(path),
                    kind=of_kind,
                    reader=reader,
                    stamp=stamp,
                    facts=facts,
                    failed=bool(failed),
                )

    def write(self, results: Sequence[Result]) -> None:
        """Write results in one transaction, over those of the same files.

        Args:
            results: Those without facts are left out: what is stored of
                their files still holds.

        Raises:
            PermissionError: If the store was opened to be read only.
        """
        if self.read_only:
            raise PermissionError(
                f'{self.path} was opened with read_only=True'
            )
        rows = [
            (_key(r.path), r.kind, r.reader, r.stamp, r.failed, r.facts)
            for r in results
            if r.facts
        ]
        with self._transaction():
            self._db.executemany(_WRITE, rows)

    def _select(
        self, columns: str, kind: str, paths: Iterable[str]
    ) -> Iterator[tuple]:
        for chunk in _chunks(paths, _KEYS_A_QUERY):
            marks = ','.join('?' * len(chunk))
            query = (
                f'SELECT path, {columns} FROM facts '
                f'WHERE kind = ? AND path IN ({marks})'
            )
            keys = [_key(path) for path in chunk]
            for row in self._db.execute(query, (kind, *keys)).fetchall():
                yield _path(row[0]), *row[1:]

    def _value(self, query: str) -> int:
        return self._db.execute(query).fetchone()[0]

    def _refusal(self, reason: str) -> str:
        return (
            f'{self.path} must be a store of label checks, got a file that '
            f'is none ({reason}); give another path, or move the file away'
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute('BEGIN IMMEDIATE')
        try:
            yield
        except BaseException:
            self._db.execute('ROLLBACK')
            raise
        self._db.execute('COMMIT')

    def _check(self) -> bool:
        """Raise if the file is not ours; tell whether it is still empty."""
        ours = self._value('PRAGMA application_id')
        version = self._value('PRAGMA user_version')
        tables = self._value('SELECT count(*) FROM sqlite_master')
        if not (ours or version or tables):
            return True
        if ours != APPLICATION_ID:
            raise ValueError(
                self._refusal(f'application id {ours}, {tables} tables')
            )
        if version != SCHEMA_VERSION:
            raise ValueError(
                f'{self.path} must be a store of version {SCHEMA_VERSION}, '
                f'got version {version}; delete it to have all files read '
                f'anew, or give another path'
            )
        return False

    def _open(self) -> None:
        empty = self._check()
        if self.read_only:
            if empty:
                raise ValueError(self._refusal('it is empty'))
            return
        self._db.execute('PRAGMA journal_mode = WAL')
        self._db.execute('PRAGMA synchronous = NORMAL')
        if not empty:
            return
        with self._transaction():
            # Another process may have been faster.
            if self._check():
                self._db.execute(_TABLE)
                self._db.execute(f'PRAGMA application_id = {APPLICATION_ID}')
                self._db.execute(f'PRAGMA user_version = {SCHEMA_VERSION}')


def merge_stores(stores: Sequence[str | Path], out: str | Path) -> int:
    """Put the facts of several stores, such as those of shards, into one.

    ``out`` appears when it is complete: until then the work is in a file
    beside it, whose name ends in ``.part``.

    Args:
        stores: Files; of a file that several know, the last one's facts
            are taken.
        out: File to make.

    Returns:
        Number of rows in ``out``.

    Raises:
        ValueError: If ``stores`` is empty, or one of them is not a store.
        FileNotFoundError: If one of ``stores`` does not exist.
        FileExistsError: If ``out`` is there already.
    """
    out = Path(out)
    if not stores:
        raise ValueError('stores must name at least one file, got none')
    if out.exists():
        raise FileExistsError(
            f'out must not exist, got {out}; delete it or give another path'
        )
    for path in stores:
        FactStore(path, read_only=True).close()
    part = out.with_name(f'{out.name}.part')
    part.unlink(missing_ok=True)
    # Logs without their data base would be taken for those of the new one.
    for base, end in product((part, out), ('wal', 'shm')):
        Path(f'{base}-{end}').unlink(missing_ok=True)
    with FactStore(part) as merged:
        for path in stores:
            with FactStore(path, read_only=True) as store:
                for rows in _chunks(store.rows(), 2000):
                    merged.write(rows)
        count = len(merged)
    os.replace(part, out)
    return count
