"""The SQLite file of a store: whose it is, its version, transactions."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

__all__ = ['SCHEMA_VERSION', 'StoreFile']

# 'mmLC', big-endian: says in the header of the file that it is ours.
APPLICATION_ID = 0x6D6D4C43
SCHEMA_VERSION = 2
_TABLE = """
CREATE TABLE facts (
    path BLOB NOT NULL, kind TEXT NOT NULL, reader TEXT NOT NULL,
    stamp TEXT NOT NULL, failed INTEGER NOT NULL, facts BLOB NOT NULL,
    PRIMARY KEY (path, kind)
) WITHOUT ROWID
"""
# Since version 2.
_VERDICTS = """
CREATE TABLE verdicts (
    key BLOB PRIMARY KEY, used INTEGER NOT NULL, verdict BLOB NOT NULL
)
"""

_Self = TypeVar('_Self', bound='StoreFile')


class StoreFile:
    """An open file; usable as a context manager.

    Args:
        path: File; made if it is not there, unless ``read_only``. One of an
            older version is brought up to date.
        read_only: Raise for every write.

    Attributes:
        path: As given.
        read_only: As given.
        db: The connection.
        version: Of the file, from 1 to :data:`SCHEMA_VERSION`.

    Raises:
        ValueError: If the file is not a store, or one of a newer version.
        FileNotFoundError: If ``read_only`` and there is no file; or the
            folder does not exist.
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
        self.db = sqlite3.connect(
            f'{uri}?mode={"ro" if read_only else "rwc"}',
            uri=True,
            timeout=30,
            isolation_level=None,
        )
        try:
            self.version = self._open()
        except sqlite3.DatabaseError as error:
            self.db.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise ValueError(self._refusal(str(error))) from error
        except ValueError:
            self.db.close()
            raise

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; all that was written is in it."""
        self.db.close()

    def refuse_read_only(self) -> None:
        """Raise PermissionError if the store was opened to be read only."""
        if self.read_only:
            raise PermissionError(
                f'{self.path} was opened with read_only=True'
            )

    def value(self, query: str) -> int:
        """The one number that a query gives."""
        return self.db.execute(query).fetchone()[0]

    def _refusal(self, reason: str) -> str:
        return (
            f'{self.path} must be a store of label checks, got a file that '
            f'is none ({reason}); give another path, or move the file away'
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside, or nothing if an error is raised."""
        self.db.execute('BEGIN IMMEDIATE')
        try:
            yield
        except BaseException:
            self.db.execute('ROLLBACK')
            raise
        self.db.execute('COMMIT')

    def _check(self) -> int:
        """Version of the file, 0 if it is still empty; raise if not ours."""
        ours = self.value('PRAGMA application_id')
        version = self.value('PRAGMA user_version')
        tables = self.value('SELECT count(*) FROM sqlite_master')
        if not (ours or version or tables):
            return 0
        if ours != APPLICATION_ID:
            raise ValueError(
                self._refusal(f'application id {ours}, {tables} tables')
            )
        if not 1 <= version <= SCHEMA_VERSION:
            raise ValueError(
                f'{self.path} must be a store of version 1 to '
                f'{SCHEMA_VERSION}, got version {version}; delete it to have '
                f'all files read anew, or give another path'
            )
        return version

    def _open(self) -> int:
        """Version of the file; it is the newest unless read only."""
        version = self._check()
        if self.read_only:
            if not version:
                raise ValueError(self._refusal('it is empty'))
            return version
        self.db.execute('PRAGMA journal_mode = WAL')
        self.db.execute('PRAGMA synchronous = NORMAL')
        if version < SCHEMA_VERSION:
            with self.transaction():
                # Another process may have been faster.
                version = self._check()
                if version < 1:
                    self.db.execute(_TABLE)
                    self.db.execute(
                        f'PRAGMA application_id = {APPLICATION_ID}'
                    )
                if version < SCHEMA_VERSION:
                    self.db.execute(_VERDICTS)
                    self.db.execute(f'PRAGMA user_version = {SCHEMA_VERSION}')
        return SCHEMA_VERSION
