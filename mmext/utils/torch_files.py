"""Read the two formats of ``torch.save`` without PyTorch's unpickler.

Since PyTorch 1.6, a file is a zip archive with a pickle and a record for each
storage. Before, it was five pickles (a number, a version, the system, the
content, and the keys of the storages), then the storages in that order.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from .archive import (
    PICKLE,
    DamagedFileError,
    Record,
    find_records,
    is_archive,
)
from .files import open_regular
from .pickle_records import read_records
from .plain_types import Maker, RefusedValueError, Storage, storage_dtype

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_NUM_PICKLES = 5
_COUNT_BYTES = 8
# Operators need elements at multiples of their size, 16 bytes at most.
_ALIGNMENT = 16


class _Clipped(io.BufferedReader):
    """A file of which a read never allocates more bytes than are left."""

    def read(self, size: int = -1) -> bytes:
        left = os.fstat(self.fileno()).st_size - self.tell()
        return super().read(max(0, min(size, left)) if size >= 0 else left)


@contextmanager
def open_checkpoint(file: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """Open a file, or rewind one that is open and rewind it again.

    Raises:
        OSError: If it is not a regular file.
    """
    if isinstance(file, str | os.PathLike):
        with _Clipped(open_regular(file).detach()) as stream:
            yield stream
    else:
        file.seek(0)
        yield file
        file.seek(0)


def read_names(stream: IO[bytes]) -> dict[str, None]:
    """Return the names in a checkpoint, as far as its pickles are readable."""
    names: dict[str, None] = {}
    with suppress(DamagedFileError):
        if is_archive(stream):
            read_records(_pickle_of(stream, find_records(stream)), names)
        else:
            for _ in range(_NUM_PICKLES):
                read_records(stream, names)
    return names


def read_torch_file(
    stream: IO[bytes], map_location: Any = None, mapped: str | None = None
) -> Any:
    """Read what ``torch.save`` wrote.

    Args:
        stream: The file.
        map_location: As of ``torch.load``. ``'meta'`` reads no tensors.
        mapped: Path of the file, to map storages into memory, copy on write,
            instead of reading them; None to read them.

    Raises:
        DamagedFileError: If the bytes are not such a file, or not all of it.
        RefusedValueError: If it contains something that is not plain data.
    """
    if is_archive(stream):
        return _read_archive(stream, map_location, mapped)
    return _read_old_format(stream, map_location)


def _pickle_of(stream: IO[bytes], files: Mapping[str, Record]) -> io.BytesIO:
    if PICKLE not in files:
        raise DamagedFileError(
            f'it has no {PICKLE}; a program of torch.jit or torch.export is '
            'not a checkpoint'
        )
    return io.BytesIO(_content(stream, files[PICKLE]))


def _content(stream: IO[bytes], record: Record) -> bytes:
    stream.seek(record.start)
    return stream.read(record.size)


def _read_archive(
    stream: IO[bytes], map_location: Any, mapped: str | None
) -> Any:
    files = find_records(stream)
    order = files.get('byteorder')
    if order is not None and _content(stream, order) != b'little':
        raise DamagedFileError('it was written by a big-endian machine')
    record = read_records(_pickle_of(stream, files))
    memory = None
    if mapped is not None:
        size = stream.seek(0, os.SEEK_END)
        memory = torch.UntypedStorage.from_file(mapped, False, size)

    def read(which: _StorageId) -> torch.UntypedStorage:
        file = files.get(f'data/{which.key}')
        if file is None or file.size != which.size:
            found = 'none' if file is None else f'{file.size} bytes'
            raise DamagedFileError(
                f'record data/{which.key} must have {which.size} bytes, got '
                f'{found}'
            )
        if memory is not None and file.start % _ALIGNMENT == 0:
            return memory[file.start : file.start + file.size]
        return _read_storage(stream, file.start, file.size)

    return Maker(_Storages(read, map_location)).make(record)


def _read_old_format(stream: IO[bytes], map_location: Any) -> Any:
    try:
        number = read_records(stream)
    except DamagedFileError:
        number = None
    if number != _MAGIC_NUMBER:
        size = stream.seek(0, os.SEEK_END)
        raise DamagedFileError(
            f'it is not a PyTorch checkpoint ({size} bytes)'
        )
    for _ in ('version', 'system'):
        read_records(stream)
    persistent: list[Any] = []
    record = read_records(stream, persistent=persistent)
    keys = read_records(stream)
    known = {which.key: which for which in map(_StorageId.parse, persistent)}
    starts = {}
    for key in keys if isinstance(keys, list) else ():
        which = known.get(key) if isinstance(key, str) else None
        count = int.from_bytes(stream.read(_COUNT_BYTES), 'little')
        if which is None or count * which.itemsize != which.size:
            raise DamagedFileError(f'storage {key!r} has another size')
        starts[key] = stream.tell()
        stream.seek(which.size, os.SEEK_CUR)
    end = stream.seek(0, os.SEEK_END)

    def read(which: _StorageId) -> torch.UntypedStorage:
        start = starts.get(which.key)
        if start is None or start + which.size > end:
            raise DamagedFileError(f'it is cut off before {which.key!r}')
        return _read_storage(stream, start, which.size)

    return Maker(_Storages(read, map_location)).make(record)


def _read_storage(
    stream: IO[bytes], start: int, size: int
) -> torch.UntypedStorage:
    memory = torch.UntypedStorage(size)
    view = torch.empty(0, dtype=torch.uint8).set_(memory, 0, (size,), (1,))
    stream.seek(start)
    if size and stream.readinto(memoryview(view.numpy())) < size:
        raise DamagedFileError('it is cut off')
    return memory


@dataclass(frozen=True)
class _StorageId:
    """Description of a storage in a pickle; sizes are in bytes."""

    key: str
    dtype: torch.dtype | None
    location: str
    size: int
    itemsize: int

    @classmethod
    def parse(cls, identifier: Any) -> '_StorageId':
        """Check the persistent identifier that a pickle has for a storage."""
        if not isinstance(identifier, tuple) or len(identifier) not in (5, 6):
            raise RefusedValueError('an unknown persistent identifier')
        kind, name, key, location, count, *view = identifier
        types = [type(item) for item in (kind, key, location, count)]
        is_right = kind == 'storage' and types == [str, str, str, int]
        # A part of another storage, which PyTorch wrote before 0.4.
        if not is_right or count < 0 or any(view):
            raise RefusedValueError('an unknown identifier of a storage')
        dtype = storage_dtype(name)
        itemsize = 1 if dtype is None else dtype.itemsize
        return cls(key, dtype, location, count * itemsize, itemsize)


class _Storages:
    """Storages of a checkpoint, each read once and put on its device."""

    def __init__(
        self,
        read: Callable[[_StorageId], torch.UntypedStorage],
        map_location: Any,
    ) -> None:
        self._read = read
        self._map_location = map_location
        self._known: dict[str, tuple[torch.UntypedStorage, int]] = {}

    def __call__(self, identifier: Any) -> Storage:
        which = _StorageId.parse(identifier)
        if which.key not in self._known:
            self._known[which.key] = self._placed(which), which.size
        memory, size = self._known[which.key]
        if size != which.size:
            raise RefusedValueError(f'two sizes of storage {which.key!r}')
        return Storage(memory, which.dtype)

    def _placed(self, which: _StorageId) -> torch.UntypedStorage:
        where, location = self._map_location, which.location
        if str(where) == 'meta':
            return torch.UntypedStorage(which.size, device='meta')
        memory = self._read(which)
        if callable(where):
            placed = where(memory, location)
            if placed is not None:
                return placed
        elif isinstance(where, Mapping):
            location = where.get(location, location)
        elif where is not None:
            location = str(where)
        return torch.serialization.default_restore_location(memory, location)
