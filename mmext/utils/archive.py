"""Read the zip archives that ``torch.save`` writes, and notice damage.

An archive has a CRC-32 of the content of each record, which PyTorch writes
and does not compare when it loads. Names, offsets, padding and the directory
have no checksum. Damage to them leads to other contents, is an error when the
file is read, or changes nothing.
"""

import errno
import io
import os
import struct
import zipfile
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .files import open_regular

# First bytes of a record, and of the end of an archive.
_LOCAL, _END = b'PK\x03\x04', b'PK\x05\x06'
_END_BYTES = 22
# Header of a record: the lengths of the name and the extra field after it.
_HEADER = struct.Struct('<4s22xHH')
_CHUNK_BYTES = 1 << 20
_ENCRYPTED = 1
# Record with everything but the tensors.
PICKLE = 'data.pkl'


class DamagedFileError(ValueError):
    """A file is not what was written."""


@dataclass(frozen=True)
class Record:
    """Where the content of a record lies in the file, in bytes."""

    start: int
    size: int
    checksum: int


def is_archive(stream: IO[bytes]) -> bool:
    """Whether a file is in PyTorch's format since 1.6; rewinds the stream."""
    stream.seek(0)
    start = stream.read(len(_LOCAL))
    stream.seek(0)
    return start == _LOCAL


def find_records(stream: IO[bytes]) -> dict[str, Record]:
    """Find the records of an archive, by name without the archive's folder.

    Raises:
        DamagedFileError: If the archive is cut off, or if records overlap,
            lie outside of the file, or are compressed, which ``torch.save``
            does not do: together they are never larger than the file.
    """
    try:
        return _find(stream)
    except DamagedFileError:
        raise
    except (
        EOFError,
        NotImplementedError,
        OSError,
        RuntimeError,
        ValueError,
        struct.error,
        zipfile.BadZipFile,
    ) as error:
        # EINVAL: an offset before the file. Other errors come from the disk.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise DamagedFileError(
            f'the archive cannot be read: {error}'
        ) from error


def _find(stream: IO[bytes]) -> dict[str, Record]:
    if not zipfile.is_zipfile(stream):
        raise DamagedFileError('it is cut off: the archive has no end')
    with zipfile.ZipFile(stream) as archive:
        entries = archive.infolist()
        stream.seek(-_END_BYTES - len(archive.comment), os.SEEK_END)
        end = stream.tell()
        if stream.read(len(_END)) != _END:
            raise DamagedFileError('there is something after its end')
    records: dict[str, Record] = {}
    # Backwards: a record ends where the next one begins.
    for entry in sorted(entries, key=lambda entry: -entry.header_offset):
        name = entry.filename.partition('/')[2]
        if (
            entry.compress_type != zipfile.ZIP_STORED
            or entry.flag_bits & _ENCRYPTED
        ):
            raise DamagedFileError(
                f'record {name!r} is compressed or encrypted, which '
                'torch.save does not do'
            )
        stream.seek(entry.header_offset)
        mark, *lengths = _HEADER.unpack(_read(stream, _HEADER.size))
        start = stream.tell() + sum(lengths)
        if mark != _LOCAL or start + entry.file_size > end or name in records:
            raise DamagedFileError(
                f'record {name!r} is there twice, overlaps another one, or '
                'lies outside of the file'
            )
        records[name] = Record(start, entry.file_size, entry.CRC)
        end = entry.header_offset
    return records


def check_archive(
    file: str | Path | io.BytesIO, *, contents: bool = True
) -> bool:
    """Compare the checksums of a file that ``torch.save`` wrote.

    Args:
        file: A local file, or its content.
        contents: Compare the checksums of all records; else only of the
            record without tensors, which takes milliseconds.

    Returns:
        Whether the file has checksums: not in PyTorch's format before 1.6,
        and not after ``torch.serialization.set_crc32_options(False)``.

    Raises:
        DamagedFileError: If a checksum differs, or as :func:`find_records`.
        OSError: If it is not a regular file, or its disk has an error.
    """
    is_content = isinstance(file, io.BytesIO)
    with nullcontext(file) if is_content else open_regular(file) as stream:
        try:
            if not is_archive(stream):
                return False
            records = find_records(stream)
            if records and not any(item.checksum for item in records.values()):
                return False
            for name, record in records.items():
                if contents or name == PICKLE:
                    _compare(stream, name, record)
        finally:
            stream.seek(0)
    return True


def _compare(stream: IO[bytes], name: str, record: Record) -> None:
    stream.seek(record.start)
    checksum, left = 0, record.size
    while left:
        chunk = _read(stream, min(left, _CHUNK_BYTES))
        checksum = zlib.crc32(chunk, checksum)
        left -= len(chunk)
    if checksum != record.checksum:
        raise DamagedFileError(f'record {name!r}: the checksum differs')


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise DamagedFileError('it is cut off')
    return data
