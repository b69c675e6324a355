"""Read files, in any process, and keep their facts on disk for the next run.

A :class:`WorkItem` says what to read and how, :func:`read_item` reads it
through mmengine's file backends and gives a :class:`Result`, whose facts are
packed already, so that the process that collects them has little to do.

They are kept in an SQLite file: the standard library has it, rows are written
as they come and survive kill -9. A column store such as DuckDB or Parquet
would need a dependency, and is made for large writes and scans over columns,
while a check writes small batches and asks for single files.
"""

import hashlib
import http.client
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    wait,
)
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
from mmengine.fileio import get_file_backend

from ...utils.files import lock_file
from ..findings import ErrorCatcher, code_location
from .facts import (
    ErrorKind,
    ImageFacts,
    MaskFacts,
    ReadError,
    VocFile,
    YoloFile,
)

# What file backends raise for a file that they cannot give. HTTP's errors
# and those of the file system are OSError; a name that no file can have
# (a zero in it, not ASCII for LMDB, two '://') is a ValueError.
_FILE_ERRORS = (OSError, ValueError, http.client.HTTPException)
_ABSENT = (FileNotFoundError, NotADirectoryError)


class WorkItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file to read."""

    path: str  # Path, URL, or key of a data base, as the data set names it.
    kind: str  # One of READERS.
    # Of mmengine's file backend; None to choose it by the prefix of the path.
    # One object for all files of a data set.
    backend_args: dict[str, Any] | None = None
    # Of the key points in YOLO's label files; empty for none.
    kpt_shape: tuple[int, ...] = ()
    # What the file was when it was looked at, such as its size and time of
    # change; empty if only its bytes can tell.
    stamp: str = ''
    # Stamp under which facts are stored already; a file whose bytes still have
    # it is not decoded again.
    known: str = ''


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one file, as it is stored."""

    path: str  # As in WorkItem.
    kind: str  # Key in the store, of stored_kind.
    stamp: str  # Of the file; empty for facts that must not be used again.
    facts: bytes  # Packed facts; empty if those that are stored still hold.


# Kind -> type of the facts, which has a field error; module of `readers` and
# function that makes them of bytes, and what else that is given.
READERS: dict[str, tuple] = {
    'mask': (MaskFacts, 'image', 'read_mask_facts'),
    'image': (ImageFacts, 'image', 'read_image_facts'),
    'voc': (VocFile, 'boxes', 'read_voc'),
    'yolo': (YoloFile, 'boxes', 'read_yolo'),
    'npy_image': (ImageFacts, 'image', 'read_npy_image'),
    'npy_mask': (MaskFacts, 'image', 'read_npy_mask'),
    'npy_depth': (ImageFacts, 'image', 'read_npy_map', 'depth'),
    'npy_normal': (ImageFacts, 'image', 'read_npy_map', 'normal'),
}


def read_facts(
    content: bytes, kind: str, kpt_shape: tuple[int, ...] = ()
) -> Any:
    """Facts of the bytes of a file; only YOLO's labels have key points."""
    _, name, function, *args = READERS[kind]
    # Decoders are loaded with the first file that they read.
    module = import_module(f'.readers.{name}', __package__)
    args += (kpt_shape,) if kpt_shape else ()
    return getattr(module, function)(content, *args)


def stored_kind(item: WorkItem) -> str:
    """Kind of facts in the store, apart by file backend and key points."""
    if not item.backend_args and not item.kpt_shape:
        return item.kind
    options = item.backend_args, *item.kpt_shape
    packed = msgspec.json.encode(options, order='sorted', enc_hook=repr)
    return f'{item.kind}@{hashlib.sha256(packed).hexdigest()[:16]}'


@cache
def _decoder(kind: str) -> msgspec.msgpack.Decoder:
    return msgspec.msgpack.Decoder(READERS[kind][0])


def unpack(kind: str, facts: bytes) -> Any:
    """Facts of a kind of file, from their packed form."""
    return _decoder(kind).decode(facts)


def is_on_disk(path: str, backend_args: dict[str, Any] | None) -> bool:
    """Whether mmengine reads a path from the file system, by name."""
    prefix = path.rpartition('://')[0]
    return (backend_args or {}).get('backend', prefix) in ('', 'local')


def read_content(item: WorkItem) -> tuple[bytes | None, ReadError | None]:
    """Bytes of a file, or None and why there are none."""
    args = item.backend_args
    try:
        backend = get_file_backend(
            item.path, backend_args=args, enable_singleton=True
        )
    except (KeyError, ValueError) as error:
        if args and 'backend' in args:
            raise ValueError(
                f"backend_args['backend'] must be one of mmengine's file "
                f'backends, got {args["backend"]!r}'
            ) from error
        return None, _unavailable(f'no file backend for {item.path!r}')
    try:
        content = backend.get(item.path)
    except _ABSENT as error:
        return None, _missing(error.strerror or str(error))
    except _FILE_ERRORS as error:
        if getattr(error, 'code', None) in (404, 410):
            return None, _missing(str(error))
        return None, _unavailable(f'{type(error).__name__}: {error}')
    if content is None:
        return None, _missing('the file backend has nothing of this name')
    return bytes(content), None


def _missing(reason: str) -> ReadError:
    return ReadError(ErrorKind.MISSING, f'missing: {reason}')


def _unavailable(reason: str) -> ReadError:
    return ReadError(ErrorKind.UNAVAILABLE, f'cannot be read: {reason}')


def _result(item: WorkItem, facts: Any, stamp: str) -> Result:
    return Result(
        path=item.path,
        kind=stored_kind(item),
        stamp=stamp,
        facts=b'' if facts is None else msgspec.msgpack.encode(facts),
    )


def read_item(item: WorkItem) -> Result:
    """Read one file; without facts if the bytes are those of ``known``.

    A file that cannot be had has facts with an error. They are stored
    without a stamp unless it is missing, as access rights and networks
    change without a change of the file.
    """
    content, error = read_content(item)
    if error is not None:
        # A file that went away after it was looked at may come back as it
        # was, so nothing is remembered of it.
        absent = error.kind is ErrorKind.MISSING and item.stamp == 'absent'
        facts = READERS[item.kind][0](error=error)
        return _result(item, facts, item.stamp if absent else '')
    stamp = item.stamp
    if not stamp:
        stamp = f'sha256:{hashlib.sha256(content).hexdigest()}'
        if stamp == item.known:
            return _result(item, None, stamp)
    failed: list[Exception] = []
    with ErrorCatcher(failed.append):
        facts = read_facts(content, item.kind, item.kpt_shape)
        return _result(item, facts, stamp)
    reason = f'the reader ended with {type(failed[0]).__name__}: {failed[0]}'
    location = code_location(failed[0])
    error = _unavailable(f'{reason} ({location})')
    # Without a stamp, it is read again next time.
    return _result(item, READERS[item.kind][0](error=error), '')


def read_batch(items: Sequence[WorkItem]) -> list[Result]:
    """Read files one after the other; see :func:`read_item`."""
    return [read_item(item) for item in items]


Batch = Sequence[WorkItem]
# What takes batches, asked for one at a time in the thread of the caller, and
# yields the results of each as they become ready.
Backend = Callable[[Iterable[Batch]], Iterator[list[Result]]]


def choose_backend(workers: int, scheduler: str | None) -> Backend:
    """The function that reads batches, its options bound."""
    if workers < 0:
        raise ValueError(f'--workers must be at least 0, got {workers}')
    if scheduler:
        return partial(run_dask, scheduler=scheduler)
    if workers == 1:
        return run_serial
    return partial(run_joblib, workers=workers)


def run_in_flight(
    batches: Iterable[Batch],
    submit: Callable[[Batch], Future],
    *,
    limit: int,
    lost: type[BaseException] = BrokenExecutor,
) -> Iterator[list[Result]]:
    """Submit batches, no more than ``limit`` at a time.

    A future raises ``lost`` if a worker died. It is not known which of the
    batches at work it read, so all of them are named.
    """
    batches = iter(batches)
    batch: Batch = ()
    waiting: dict[Future, Batch] = {}
    try:
        while True:
            for batch in islice(batches, limit - len(waiting)):
                waiting[submit(batch)] = batch
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            # What is good is stored before an error ends the run.
            for future in sorted(
                done, key=lambda f: f.cancelled() or f.exception() is not None
            ):
                results = future.result()
                del waiting[future]
                yield results
    except (lost, CancelledError) as error:
        at_work = list(waiting.values()) or [batch]
        files = [item.path for batch in at_work for item in batch]
        raise ChildProcessError(
            f'a worker process died ({type(error).__name__}) while it read '
            f'one of {len(files)} files, from {files[0]!r} to {files[-1]!r}. '
            'If the system stopped it for lack of memory, use fewer workers '
            'or more memory; if a worker dies of these files again, one of '
            'them is the cause: take it out of the data set. What has been '
            'read is stored: the same command goes on from there'
        ) from error
    finally:
        for future in waiting:
            future.cancel()


def run_joblib(
    batches: Iterable[Batch], *, workers: int = 0
) -> Iterator[list[Result]]:
    """Read batches in processes that are started once.

    ``joblib.Parallel`` itself puts no bound on results that nobody has taken
    yet; so its pool, loky, is used directly. Processes, as decoding in
    threads waits for the interpreter lock wherever a decoder does not let go
    of it.
    """
    # Not at the top: the processes that read do not need it.
    from joblib import cpu_count
    from joblib.externals.loky import get_reusable_executor

    # A process takes half a second to start: no more than there is to do.
    batches = iter(batches)
    first = list(islice(batches, workers or cpu_count()))
    workers = max(len(first), 1)
    pool = get_reusable_executor(max_workers=workers)
    complete = False
    try:
        yield from run_in_flight(
            chain(first, batches),
            partial(pool.submit, read_batch),
            limit=2 * workers,
        )
        complete = True
    finally:
        if not complete:
            pool.shutdown(wait=True, kill_workers=True)


def run_dask(
    batches: Iterable[Batch], *, scheduler: str
) -> Iterator[list[Result]]:
    """Read batches on the workers of a Dask scheduler.

    The workers need mmext, and the files under the same paths. The scheduler
    runs the batches of a worker that died again; once it gives up on a batch,
    the run ends as in :func:`run_in_flight`.
    """
    if find_spec('distributed') is None:
        raise ImportError(
            '--scheduler needs the package distributed: '
            "pip install 'mmext[dask]'"
        )
    from distributed import Client
    from distributed.scheduler import KilledWorker

    with Client(scheduler, set_as_default=False) as client:
        threads = sum(client.nthreads().values())
        # Without `pure`, a batch is not taken for the same one of another
        # check.
        pool = client.get_executor(pure=False)
        yield from run_in_flight(
            batches,
            partial(pool.submit, read_batch),
            limit=3 * max(threads, 1),
            lost=KilledWorker,
        )


def run_serial(batches: Iterable[Batch]) -> Iterator[list[Result]]:
    """Read batches one after the other, in the order given."""
    return map(read_batch, batches)


# 'mmLC', big-endian: says in the header of the file that it is ours.
APPLICATION_ID = 0x6D6D4C43
# To be raised when the table changes, or when the same bytes give other facts
# than before: files of other versions are made anew.
SCHEMA_VERSION = 7
_MAGIC = b'SQLite format 3\x00'
_TABLE = """
CREATE TABLE facts (
    path BLOB NOT NULL, kind TEXT NOT NULL, stamp TEXT NOT NULL,
    facts BLOB NOT NULL,
    PRIMARY KEY (path, kind)
) WITHOUT ROWID
"""


def _key(path: str) -> bytes:
    """Path as it is stored; names need not be valid text."""
    return path.encode('utf-8', 'surrogatepass')


def chunks(items: Iterable, size: int) -> Iterator[list]:
    """Lists of ``size`` items; the last may be shorter."""
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


class FactStore:
    """Facts of files by path and kind, in one SQLite file.

    It is made if it is not there, and anew if it is of another version; a file
    that is no store is a ValueError. Several processes may read it while one
    writes; a second writer waits for up to half a minute.

    Every write is one transaction: killing the process loses none that has
    returned. A loss of power may lose the last ones, and never leaves half of
    one. The file must be on a disk of this machine: SQLite's write-ahead log
    does not work over a network. On a file system without locks, facts are
    kept until the store is closed, with a warning.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> row = Result(path='a.png', kind='mask', stamp='9', facts=b'...')
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
        database = f'{self.path.absolute().as_uri()}?mode=rwc'
        with tempfile.TemporaryFile(dir=self.path.parent) as file:
            missing = lock_file(file)
        if missing:
            # SQLite's name for a temporary database that only it sees.
            database = ''
            warnings.warn(
                f'{self.path} is not used: SQLite needs locks, and its file '
                f'system has none ({missing}). The next check reads all files '
                'again; give --store a path on a disk of this machine',
                RuntimeWarning,
                stacklevel=2,
            )
        self._db = sqlite3.connect(
            database, uri=True, timeout=30, isolation_level=None
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

    def stamps(self, files: Iterable[tuple[str, str]]) -> list[str | None]:
        """Stamps of files, by path and kind; None if not stored."""
        return list(self._select('stamp', files))

    def facts(self, files: Iterable[tuple[str, str]]) -> list[bytes | None]:
        """Packed facts of files, by path and kind; None if not stored."""
        return list(self._select('facts', files))

    def write(self, results: Sequence[Result]) -> None:
        """Write results in one transaction, over those of the same files.

        Without facts, what is stored still holds.
        """
        rows = [
            (_key(r.path), r.kind, r.stamp, r.facts)
            for r in results
            if r.facts
        ]
        with self._db:
            self._db.execute('BEGIN IMMEDIATE')
            self._db.executemany(
                'INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?)', rows
            )

    def _select(
        self, column: str, files: Iterable[tuple[str, str]]
    ) -> Iterator[Any]:
        """A column of each file; None if it is not there."""
        # SQLite before 3.32 takes 999 parameters.
        for chunk in chunks(files, 900):
            keys = [(_key(path), kind) for path, kind in chunk]
            marks = ','.join('?' * len(keys))
            query = (
                f'SELECT path, kind, {column} FROM facts '
                f'WHERE path IN ({marks})'
            )
            rows = self._db.execute(query, [path for path, _ in keys])
            value_of = {row[:2]: row[2] for row in rows}
            yield from map(value_of.get, keys)
