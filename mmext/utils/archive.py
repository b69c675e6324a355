"""Notice damage in the zip archives that ``torch.save`` writes.

An archive has a CRC-32 of the content of each record, which PyTorch writes
and does not compare when it loads. What lies around the contents (names,
offsets, padding, the directory) has no checksum, and needs none: damage there
leads to other contents, is an error of ``torch.load``, or changes nothing.
"""

import errno
import io
import os
import zipfile
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import IO

# How the header of a record begins, and the end of an archive.
_LOCAL, _END = b'PK\x03\x04', b'PK\x05\x06'
_END_BYTES = 22
_CHUNK_BYTES = 1 << 20
# The record that holds all but tensors.
_PICKLE = 'data.pkl'


class DamagedFileError(ValueError):
    """A file is not what was written."""


def check_archive(
    file: str | Path | io.BytesIO, *, contents: bool = True
) -> bool:
    """Compare the checksums of a file that ``torch.save`` wrote.

    Args:
        file: A local file, or its content.
        contents: Compare those of all records; else only of the one that
            holds all but tensors, which takes milliseconds.

    Returns:
        Whether there are checksums. There are none in a file in PyTorch's
        format before 1.6, or saved with
        ``torch.serialization.set_crc32_options(False)``.

    Raises:
        DamagedFileError: If a checksum differs, or the archive is cut off.
    """
    is_content = isinstance(file, io.BytesIO)
    with nullcontext(file) if is_content else open(file, 'rb') as stream:
        try:
            return _check(stream, contents)
        except DamagedFileError:
            raise
        except (
            zipfile.BadZipFile,
            EOFError,
            OSError,
            RuntimeError,
            ValueError,
            zlib.error,
        ) as error:
            # Invalid is an offset before the file; other errors of a disk are
            # no damage to the file.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise DamagedFileError(
                f'the archive cannot be read: {error}'
            ) from error
        finally:
            stream.seek(0)


def _check(stream: IO[bytes], contents: bool) -> bool:
    start = stream.read(len(_LOCAL))
    if not zipfile.is_zipfile(stream):
        if start == _LOCAL:
            raise DamagedFileError('it is cut off: the archive has no end')
        return False
    with zipfile.ZipFile(stream) as archive:
        stream.seek(-_END_BYTES - len(archive.comment), os.SEEK_END)
        if stream.read(len(_END)) != _END:
            raise DamagedFileError('there is something after its end')
        entries = archive.infolist()
        if entries and not any(entry.CRC for entry in entries):
            return False
        for entry in entries:
            if contents or Path(entry.filename).name == _PICKLE:
                try:
                    # The last chunk compares the checksum.
                    with archive.open(entry) as record:
                        while record.read(_CHUNK_BYTES):
                            pass
                except zipfile.BadZipFile as error:
                    raise DamagedFileError(
                        f'record {entry.filename!r}: {error}'
                    ) from error
    return True
