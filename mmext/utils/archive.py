"""Notice damage in the zip archives that ``torch.save`` writes.

An archive has a CRC-32 of the content of each record, which PyTorch writes
and does not compare when it loads. What lies around the contents (names,
offsets, padding, the directory) has no checksum; :func:`seal_archive` adds
one, as the comment at the end of the archive. With both, every byte of a file
is covered, and the bulk of it is read once.
"""

import io
import mmap
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

_Bytes = mmap.mmap | memoryview | bytes

_LOCAL = b'PK\x03\x04'
_END = b'PK\x05\x06'
# Fixed parts of a header before a record, and of the end of an archive.
_LOCAL_BYTES, _END_BYTES = 30, 22
# In the flags of a record: its name is UTF-8.
_UTF_8 = 0x800
_SEAL = b'mmext-crc32:'
_SEALED = re.compile(re.escape(_SEAL) + rb'[0-9a-f]{8}')
_CHUNK_BYTES = 1 << 24
# The record that holds all but tensors.
_PICKLE = 'data.pkl'


class Coverage(Enum):
    """What of a file has a checksum that was compared."""

    ALL = 'every byte'
    CONTENTS = 'the contents of all records'
    NOTHING = 'nothing'


class DamagedFileError(ValueError):
    """A file is not what was written."""


@contextmanager
def _bytes_of(file: str | Path | io.BytesIO) -> Iterator[_Bytes]:
    if isinstance(file, io.BytesIO):
        with file.getbuffer() as data:
            yield data
        file.seek(0)
        return
    with open(file, 'rb') as opened:
        if not os.fstat(opened.fileno()).st_size:
            yield b''
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _checksum(data: _Bytes, start: int, stop: int, value: int = 0) -> int:
    with memoryview(data) as view:
        for begin in range(start, stop, _CHUNK_BYTES):
            end = min(begin + _CHUNK_BYTES, stop)
            with view[begin:end] as part:
                value = zlib.crc32(part, value)
    return value


def _extents(
    data: _Bytes, entries: list[zipfile.ZipInfo]
) -> Iterator[tuple[zipfile.ZipInfo, int, int]]:
    """Records in the order of the file, each with where its content is."""
    last = 0
    for entry in sorted(entries, key=lambda item: item.header_offset):
        start = entry.header_offset
        head = data[start : start + _LOCAL_BYTES]
        if start < last or len(head) < _LOCAL_BYTES or head[:4] != _LOCAL:
            raise DamagedFileError(
                f'record {entry.filename!r} is not at byte {start}'
            )
        name_bytes, extra_bytes = struct.unpack('<HH', head[26:])
        begin = start + _LOCAL_BYTES + name_bytes + extra_bytes
        name = data[start + _LOCAL_BYTES : begin - extra_bytes]
        last = begin + entry.compress_size
        encoding = 'utf-8' if entry.flag_bits & _UTF_8 else 'cp437'
        if name != entry.orig_filename.encode(encoding) or last > len(data):
            raise DamagedFileError(
                f'record {entry.filename!r} at byte {start} is another or cut '
                'off'
            )
        yield entry, begin, last


def _checksum_around(
    data: _Bytes, extents: list[tuple[zipfile.ZipInfo, int, int]], stop: int
) -> int:
    """Checksum of all that is not the content of a record."""
    value, position = 0, 0
    for _, begin, end in extents:
        value = _checksum(data, position, begin, value)
        position = end
    return _checksum(data, position, stop, value)


def seal_archive(path: str | Path) -> bool:
    """Add the checksum of what is around the records to an archive.

    It becomes the comment of the archive, which PyTorch passes over. Returns
    whether it was added: False for a file that is no archive of
    ``torch.save``, or that has a comment.
    """
    path = Path(path)
    with open(path, 'rb+') as file:
        size = file.seek(0, os.SEEK_END)
        if size < _END_BYTES:
            return False
        file.seek(size - _END_BYTES)
        end = file.read()
        if end[:4] != _END or end[-2:] != b'\0\0':
            return False
        file.seek(size - 2)
        file.write(struct.pack('<H', len(_SEAL) + 8) + _SEAL)
        file.flush()
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            zipfile.ZipFile(path) as archive,
        ):
            extents = list(_extents(data, archive.infolist()))
            value = _checksum_around(data, extents, len(data))
        file.seek(0, os.SEEK_END)
        file.write(f'{value:08x}'.encode())
    return True


def check_archive(
    file: str | Path | io.BytesIO, *, contents: bool = True
) -> Coverage:
    """Compare the checksums of a file that ``torch.save`` wrote.

    Args:
        file: A local file, or its content.
        contents: Compare those of all records; else only of the one that
            holds all but tensors, which takes milliseconds.

    Returns:
        What is covered: every byte of a sealed archive, the contents of any
        other one. Nothing of a file in PyTorch's format before 1.6, or saved
        with ``torch.serialization.set_crc32_options(False)``.

    Raises:
        DamagedFileError: If a checksum differs, or the archive is cut off.
    """
    try:
        with _bytes_of(file) as data:
            if not zipfile.is_zipfile(file):
                if data[:4] == _LOCAL:
                    raise DamagedFileError(
                        'it is cut off: the archive has no end'
                    )
                return Coverage.NOTHING
            with zipfile.ZipFile(file) as archive:
                return _check(data, archive, contents)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        UnicodeError,
        zlib.error,
    ) as error:
        raise DamagedFileError(f'the archive cannot be read: {error}') from (
            error
        )


def _check(data: _Bytes, archive: zipfile.ZipFile, contents: bool) -> Coverage:
    entries = archive.infolist()
    extents = list(_extents(data, entries))
    comment = archive.comment
    end = len(data) - len(comment) - _END_BYTES
    if data[end : end + 4] != _END:
        raise DamagedFileError('there is something after its end')
    sealed = _SEALED.fullmatch(comment) is not None
    if comment and not sealed:
        raise DamagedFileError('its last bytes are no checksum')
    if sealed:
        expected = int(comment[-8:], 16)
        value = _checksum_around(data, extents, len(data) - 8)
        if value != expected:
            raise DamagedFileError(
                'something around its records differs: checksum '
                f'{value:08x}, expected {expected:08x}'
            )
    if entries and not any(entry.CRC for entry in entries):
        return Coverage.NOTHING
    for entry, begin, stop in extents:
        if not contents and Path(entry.filename).name != _PICKLE:
            continue
        if entry.compress_type == zipfile.ZIP_STORED:
            value = _checksum(data, begin, stop)
        else:
            value = zlib.crc32(archive.read(entry))
        if value != entry.CRC:
            raise DamagedFileError(
                f'record {entry.filename!r}, bytes {begin} to {stop}, has '
                f'checksum {value:08x}, expected {entry.CRC:08x}'
            )
    return Coverage.ALL if sealed else Coverage.CONTENTS
