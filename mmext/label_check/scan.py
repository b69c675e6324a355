"""Bring a store up to date with files, reading only what has changed."""

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from .backends import serial
from .store import FactStore
from .work import Result, WorkItem, reader_key, stored_kind, unpack

__all__ = [
    'ScanCounts',
    'packed_facts',
    'parse_shard',
    'scan',
    'shard_of',
    'stamps_of',
    'stored_facts',
]

# Files that are looked up together.
_CHUNK = 4096


class ScanCounts(msgspec.Struct):
    """What a scan did.

    Attributes:
        read: Files read.
        cached: Files whose facts were stored already; also those that were
            named before in the same scan.
        errors: Files, read or stored, whose facts have an error.
    """

    read: int = 0
    cached: int = 0
    errors: int = 0


def stamps_of(items: Sequence[WorkItem]) -> list[str]:
    """Tell what files are now, without reading them.

    Args:
        items: Files.

    Returns:
        For each, size and time of change in nanoseconds; ``'absent'`` if it
        is not there; empty where only reading can tell, as in object stores
        and data bases.

    Examples:
        >>> stamps_of([WorkItem(path='no/such/file', kind='mask')])
        ['absent']
    """
    return [_stamp(item) for item in items]


def _stamp(item: WorkItem) -> str:
    if not _is_local(item):
        return ''
    try:
        state = os.stat(item.path)
    except (FileNotFoundError, NotADirectoryError):
        return 'absent'
    except (OSError, ValueError):
        # Reading it will say what is wrong with it.
        return ''
    return f'{state.st_size}:{state.st_mtime_ns}'


def _is_local(item: WorkItem) -> bool:
    """Whether mmengine reads the path from the file system, by name."""
    args = item.options.backend_args
    if not args and '://' not in item.path:
        return True
    prefix = item.path.rpartition('://')[0]
    return (args or {}).get('backend', prefix) in ('', 'local')


def _chunks(items: Iterable, size: int) -> Iterator[list]:
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


def _keys(items: Iterable[WorkItem]) -> list[tuple[str, str]]:
    """Kind under which each file is stored, and what its facts depend on."""
    # Files of a data set share one object of options.
    known: dict[tuple[str, int], tuple[str, str]] = {}
    keys = []
    for item in items:
        at = item.kind, id(item.options)
        if at not in known:
            known[at] = stored_kind(item), reader_key(item)
        keys.append(known[at])
    return keys


def _look_up(
    find: Callable[[str, list[str]], list[Any]],
    items: Sequence[WorkItem],
    kinds: Sequence[str],
) -> list[Any]:
    """Ask the store once for each kind; in the order of the files."""
    found = {}
    for each in dict.fromkeys(kinds):
        paths = [item.path for item, kind in zip(items, kinds) if kind == each]
        found[each] = iter(find(each, paths))
    return [next(found[kind]) for kind in kinds]


class _Scan:
    """State of one call of :func:`scan`."""

    def __init__(
        self,
        store: FactStore,
        stamps: Callable[[Sequence[WorkItem]], list[str]],
        progress: Callable[[int], Any] | None,
    ):
        self.store = store
        self.stamps = stamps
        self.progress = progress
        self.counts = ScanCounts()
        # Handed out and not stored yet: bounded, as batches in flight are.
        # Whether the facts that are stored of it have an error.
        self.at_work: dict[tuple[str, str], bool] = {}

    def stale(self, items: Iterable[WorkItem]) -> Iterator[WorkItem]:
        """Files that must be read; counts the others."""
        for chunk in _chunks(items, _CHUNK):
            keys = _keys(chunk)
            stamps = self.stamps(chunk)
            rows = _look_up(
                self.store.stored, chunk, [kind for kind, _ in keys]
            )
            # Handed out before the look-up and not stored then, or since.
            handed_out = set(self.at_work)
            for item, key, stamp, row in zip(chunk, keys, stamps, rows):
                kind, reader = key
                fits = row is not None and row.reader == reader
                # Most often there are none.
                if handed_out and (kind, item.path) in handed_out:
                    self.counts.cached += 1
                elif fits and stamp and row.stamp == stamp:
                    self.counts.cached += 1
                    self.counts.errors += row.failed
                else:
                    handed_out.add((kind, item.path))
                    self.at_work[kind, item.path] = bool(fits and row.failed)
                    known = row.stamp if fits else ''
                    yield msgspec.structs.replace(
                        item, stamp=stamp, known=known
                    )
            self.report()

    def take(self, results: Sequence[Result]) -> None:
        """Store results."""
        self.store.write(results)
        for result in results:
            failed = self.at_work.pop((result.kind, result.path))
            self.counts.errors += result.failed if result.facts else failed
        self.counts.read += len(results)
        self.report()

    def report(self) -> None:
        """Tell how many files are done."""
        if self.progress is not None:
            self.progress(self.counts.read + self.counts.cached)


def scan(
    items: Iterable[WorkItem],
    store: FactStore,
    *,
    run: Callable[..., Iterator[Sequence[Result]]] = serial.run,
    batch_size: int = 16,
    stamps: Callable[[Sequence[WorkItem]], list[str]] = stamps_of,
    progress: Callable[[int], Any] | None = None,
) -> ScanCounts:
    """Read the files that the store does not know as they are now.

    Results are stored as each batch arrives, so whatever ends the process
    loses no more than the batches that are at work; what has been stored is
    not read again.

    Args:
        items: Files, gone through once; a generator need not end soon.
        store: Written by this process alone, while this runs.
        run: Of a backend, its options bound by ``functools.partial``.
        batch_size: Files in a batch.
        stamps: Files -> what they are now, as :func:`stamps_of`; for object
            stores that know a tag or version of each object.
        progress: Called with the number of files done, after each batch.

    Returns:
        What was done. Facts are in the store: :func:`stored_facts`.

    Raises:
        ValueError: If ``batch_size`` is below 1.
        PermissionError: If the store was opened to be read only.

    Note:
        Memory does not depend on the number of files.
    """
    if batch_size < 1:
        raise ValueError(f'batch_size must be at least 1, got {batch_size}')
    state = _Scan(store, stamps, progress)
    for results in run(_chunks(state.stale(items), batch_size)):
        state.take(results)
    return state.counts


def packed_facts(items: Sequence[WorkItem], store: FactStore) -> list[bytes]:
    """Give the facts of files from the store, packed.

    Args:
        items: Files that have been scanned, as many as may be in memory.
        store: Of the scan.

    Returns:
        For each file, for :func:`~mmext.label_check.work.unpack`.

    Raises:
        KeyError: If a file has not been scanned.
    """
    kinds = [kind for kind, _ in _keys(items)]
    found = _look_up(store.facts, items, kinds)
    if None in found:
        item = items[found.index(None)]
        raise KeyError(
            f'{store.path} has no facts of {item.kind} {item.path!r}; '
            f'scan it first'
        )
    return found


def stored_facts(
    items: Iterable[WorkItem], store: FactStore
) -> Iterator[tuple[WorkItem, Any]]:
    """Give the facts of files from the store, in the order of ``items``.

    Args:
        items: Files that have been scanned.
        store: Of the scan.

    Yields:
        File and its facts.

    Raises:
        KeyError: If a file has not been scanned.
    """
    for chunk in _chunks(items, _CHUNK):
        for item, facts in zip(chunk, packed_facts(chunk, store)):
            yield item, unpack(item.kind, facts)


def parse_shard(text: str) -> tuple[int, int]:
    """Read ``'i/n'``, the ``i``-th of ``n`` shards, counted from 1.

    Raises:
        ValueError: If the text is anything else.

    Examples:
        >>> parse_shard('1/4')
        (1, 4)
    """
    first, slash, second = text.partition('/')
    good = slash and first.isdecimal() and second.isdecimal()
    if not good or not 1 <= int(first) <= int(second):
        raise ValueError(f"shard must be 'i/n' with 1 <= i <= n, got {text!r}")
    return int(first), int(second)


def shard_of(
    items: Iterable[WorkItem], index: int, count: int
) -> Iterator[WorkItem]:
    """Give the files of one of ``count`` shards.

    A file is in the same shard wherever it stands among ``items``, by a
    checksum of its path.

    Args:
        items: Files.
        index: Which shard, from 1 to ``count``.
        count: Shards in all.

    Yields:
        Files of that shard, in the order of ``items``.

    Raises:
        ValueError: If ``index`` is not in 1 to ``count``.
    """
    if not 1 <= index <= count:
        raise ValueError(
            f'index must be in [1, {count}], got {index} of {count} shards'
        )
    return (
        item
        for item in items
        if zlib.crc32(item.path.encode('utf-8', 'surrogateescape')) % count
        == index - 1
    )
