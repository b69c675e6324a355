"""Facts of files, kept on disk from one run to the next.

An SQLite file: the standard library has it, rows are written as they come
and survive kill -9. A column store such as DuckDB or Parquet would need a
dependency, and is made for large writes and scans over columns, while a
check writes small batches and asks for single files.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path

import msgspec

from ._store_file import SCHEMA_VERSION, StoreFile
from .work import Result

__all__ = ['FactStore', 'Stored', 'merge_stores']

# SQLite before 3.32 takes 999 parameters.
_KEYS_A_QUERY = 900
# Rows that may lie between those that are asked for; after a query that met
# more, so many are not tried that way.
_FEW_MORE = 3
_TRY_AGAIN = 30
MAX_VERDICTS = 100_000
_DAY = 24 * 60 * 60
_WRITE = 'INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?, ?)'


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A row of the store without its facts.

    Attributes:
        reader: Version and options of the reader that gave the facts.
        stamp: What the file was then; empty for facts to be read anew.
        failed: 1 if the facts have an error, else 0.
    """

    reader: str
    stamp: str
    failed: int


def _key(path: str) -> bytes:
    """Path as it is stored; names need not be valid text."""
    return path.encode('utf-8', 'surrogateescape')


def _path(key: bytes) -> str:
    return key.decode('utf-8', 'surrogateescape')


def _chunks(items: Iterable, size: int) -> Iterator[list]:
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


class FactStore(StoreFile):
    """Facts of files by path and kind, in one file.

    Usable as a context manager. Several processes may read a store while one
    writes it; a second writer waits for up to half a minute.

    Verdicts, of :mod:`~mmext.label_check.verdicts`, are kept beside them.

    Args:
        path: File; made if it is not there, unless ``read_only``. One of an
            older version is brought up to date.
        read_only: Raise for every write.

    Raises:
        ValueError: If the file is not a store, or one of a newer version.
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
        [b'...', None]
    """

    # Queries to go until neighbours are tried again.
    _scattered = 0

    def __len__(self) -> int:
        return self.value('SELECT count(*) FROM facts')

    def stored(self, kind: str, paths: Iterable[str]) -> list[Stored | None]:
        """Look up files, without their facts.

        Args:
            kind: Of all of them.
            paths: Any number that may be in memory.

        Returns:
            For each file its row, None if it is not stored.
        """
        rows = self._select('reader, stamp, failed', kind, paths)
        return [row and Stored(*row[2:]) for row in rows]

    def facts(self, kind: str, paths: Iterable[str]) -> list[bytes | None]:
        """Look up the packed facts of files.

        Args:
            kind: Of all of them.
            paths: Any number that may be in memory.

        Returns:
            For each file its packed facts, None if it is not stored.
        """
        return [row and row[2] for row in self._select('facts', kind, paths)]

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
            for (path, stamp), row in zip(stamps.items(), rows)
            if not stamp
            or row is None
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
        while found := self.db.execute(query, (*last, *more)).fetchall():
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
        self.refuse_read_only()
        rows = [
            (_key(r.path), r.kind, r.reader, r.stamp, r.failed, r.facts)
            for r in results
            if r.facts
        ]
        with self.transaction():
            self.db.executemany(_WRITE, rows)

    def verdict(self, key: bytes) -> bytes | None:
        """Look up a verdict.

        Args:
            key: Digest of all that it depends on.

        Returns:
            As it was written, None if there is none.
        """
        if self.version < SCHEMA_VERSION:
            return None
        query = 'SELECT verdict FROM verdicts WHERE key = ?'
        row = self.db.execute(query, (key,)).fetchone()
        return None if row is None else row[0]

    def write_verdicts(
        self,
        verdicts: Iterable[tuple[bytes, bytes]],
        used: Iterable[bytes] = (),
    ) -> None:
        """Write verdicts in one transaction.

        Of more than :data:`MAX_VERDICTS`, those that were not used for the
        longest time are removed.

        Args:
            verdicts: Pairs of key and verdict.
            used: Keys of others that were of use just now.

        Raises:
            PermissionError: If the store was opened to be read only.
        """
        self.refuse_read_only()
        now = int(time.time())
        with self.transaction():
            self.db.executemany(
                'INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)',
                [(key, now, verdict) for key, verdict in verdicts],
            )
            # A run that finds all it needs writes once a day.
            self.db.executemany(
                'UPDATE verdicts SET used = ? WHERE key = ? AND used < ?',
                [(now, key, now - _DAY) for key in used],
            )
            if self.value('SELECT count(*) FROM verdicts') > MAX_VERDICTS:
                self.db.execute(
                    'DELETE FROM verdicts WHERE key IN (SELECT key FROM '
                    'verdicts ORDER BY used DESC LIMIT -1 OFFSET ?)',
                    (MAX_VERDICTS,),
                )

    def all_verdicts(self) -> Iterator[tuple[bytes, bytes]]:
        """Give keys and verdicts, in any order.

        Do not write meanwhile.
        """
        if self.version == SCHEMA_VERSION:
            query = 'SELECT key, verdict FROM verdicts'
            yield from self.db.execute(query)

    def _select(
        self, columns: str, kind: str, paths: Iterable[str]
    ) -> Iterator[tuple | None]:
        """Path, kind and columns of each file; None if it is not there."""
        for keys in _chunks(map(_key, paths), _KEYS_A_QUERY):
            query = f'SELECT path, kind, {columns} FROM facts WHERE '
            rows = self._neighbours(query, keys)
            if rows is None:
                marks = ','.join('?' * len(keys))
                query += f'kind = ? AND path IN ({marks})'
                rows = self.db.execute(query, (kind, *keys)).fetchall()
            found = {row[0]: row for row in rows if row[1] == kind}
            yield from map(found.get, keys)

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
        rows = self.db.execute(query, (min(keys), max(keys), limit))
        rows = rows.fetchall()
        if len(rows) < limit:
            return rows
        self._scattered = _TRY_AGAIN
        return None


def merge_stores(stores: Sequence[str | Path], out: str | Path) -> int:
    """Put several stores, such as those of shards, into one.

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
                for verdicts in _chunks(store.all_verdicts(), 100):
                    merged.write_verdicts(verdicts)
        count = len(merged)
    os.replace(part, out)
    return count
