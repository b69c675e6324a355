"""One file to read, and what comes of it; runs in any process.

A :class:`WorkItem` says what to read and how, :func:`read_item` reads it
through mmengine's file backends and gives a :class:`Result`, whose facts are
packed already, so that the process that collects them has little to do.
"""

import hashlib
import http.client
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import msgspec
from mmengine.fileio import get_file_backend

# Imported for its effect: files are read by it.
from ...utils import local_backend  # noqa: F401
from ...utils.contain import Contained, code_place
from .facts import (
    ArrayFacts,
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


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How files are read; one object for all files of a data set.

    Attributes:
        backend_args: Of mmengine's file backend; None to choose it by the
            prefix of the path.
        verify: Compare the pixels of PNG label maps with their checksum,
            too. It takes as long as all else, and finds what memory had
            damaged before the file was written.
        kpt_shape: Of the key points in YOLO's label files; empty for none.
    """

    backend_args: dict[str, Any] | None = None
    verify: bool = False
    kpt_shape: tuple[int, ...] = ()


class WorkItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file to read.

    Attributes:
        path: Path, URL, or key of a data base, as the data set names it.
        kind: One of :data:`READERS`.
        options: How to read it.
        stamp: What the file was when it was looked at, such as its size and
            time of change; empty if only its bytes can tell.
        known: Stamp under which facts are stored already; a file whose bytes
            still have it is not decoded again.
    """

    path: str
    kind: str
    options: ReadOptions = ReadOptions()
    stamp: str = ''
    known: str = ''


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """How to read one kind of file.

    Attributes:
        facts: Type of the facts; it must have a field ``error``.
        read: Bytes and options -> facts; raises nothing for bad bytes.
        version: To be raised when the same bytes give other facts than
            before: files are then read anew.
    """

    facts: type
    read: Callable[[bytes, ReadOptions], Any]
    version: int = 1


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one file, as it is stored.

    Attributes:
        path: As in :class:`WorkItem`.
        kind: Key in the store, of :func:`stored_kind`.
        reader: Version and options that the facts depend on.
        stamp: Of the file; empty for facts that must not be used again.
        facts: Packed facts; empty if those that are stored still hold.
    """

    path: str
    kind: str
    reader: str
    stamp: str
    facts: bytes


def _late(module: str, name: str, *args: Any) -> Callable:
    """A reader; its decoders are loaded with the first file that it reads."""

    def read(content: bytes, _: ReadOptions) -> Any:
        found = import_module(f'{__package__}.readers.{module}')
        return getattr(found, name)(content, *args)

    return read


def _read_mask(content: bytes, options: ReadOptions) -> MaskFacts:
    from .readers.mask import read_mask_facts

    return read_mask_facts(content, verify=options.verify)


def _read_yolo(content: bytes, options: ReadOptions) -> YoloFile:
    from .readers.yolo import read_yolo

    return read_yolo(content, options.kpt_shape)


READERS = {
    'mask': Reader(facts=MaskFacts, read=_read_mask, version=4),
    'image': Reader(
        facts=ImageFacts, read=_late('image', 'read_image_facts'), version=3
    ),
    'voc': Reader(facts=VocFile, read=_late('voc', 'read_voc'), version=3),
    'yolo': Reader(facts=YoloFile, read=_read_yolo, version=2),
    'npy_image': Reader(facts=ImageFacts, read=_late('npy', 'read_npy_image')),
    'npy_mask': Reader(facts=MaskFacts, read=_late('npy', 'read_npy_mask')),
    'npy_depth': Reader(
        facts=ArrayFacts, read=_late('npy', 'read_npy_map', 'depth')
    ),
    'npy_normal': Reader(
        facts=ArrayFacts, read=_late('npy', 'read_npy_map', 'normal')
    ),
}


def stored_kind(item: WorkItem) -> str:
    """Kind under which facts are stored, apart for each file backend."""
    if not item.options.backend_args:
        return item.kind
    packed = msgspec.json.encode(
        item.options.backend_args, order='sorted', enc_hook=repr
    )
    return f'{item.kind}@{hashlib.sha256(packed).hexdigest()[:16]}'


def reader_key(item: WorkItem) -> str:
    """Version of the reader and the options that its facts depend on."""
    version = READERS[item.kind].version
    key = f'{version} verify={item.options.verify}'
    shape = item.options.kpt_shape
    return f'{key} kpt_shape={shape}' if shape else key


_ENCODER = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: str) -> msgspec.msgpack.Decoder:
    return msgspec.msgpack.Decoder(READERS[kind].facts)


def unpack(kind: str, facts: bytes) -> Any:
    """Facts of a kind of file, from their packed form."""
    return _decoder(kind).decode(facts)


def read_content(item: WorkItem) -> tuple[bytes | None, ReadError | None]:
    """Bytes of a file, or None and why there are none."""
    args = item.options.backend_args
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


def failed_result(item: WorkItem, error: ReadError, stamp: str = '') -> Result:
    """Result for a file of which nothing but an error is known.

    Without a stamp it is read again next time.
    """
    return _result(item, READERS[item.kind].facts(error=error), stamp)


def _result(item: WorkItem, facts: Any, stamp: str) -> Result:
    return Result(
        path=item.path,
        kind=stored_kind(item),
        reader=reader_key(item),
        stamp=stamp,
        facts=b'' if facts is None else _ENCODER.encode(facts),
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
        return failed_result(item, error, item.stamp if absent else '')
    stamp = item.stamp
    if not stamp:
        stamp = f'sha256:{hashlib.sha256(content).hexdigest()}'
        if stamp == item.known:
            return _result(item, None, stamp)
    failed: list[Exception] = []
    with Contained(failed.append):
        facts = READERS[item.kind].read(content, item.options)
        return _result(item, facts, stamp)
    reason = f'the reader ended with {type(failed[0]).__name__}: {failed[0]}'
    place = code_place(failed[0])
    return failed_result(item, _unavailable(f'{reason} ({place})'))


def read_batch(items: Sequence[WorkItem]) -> list[Result]:
    """Read files one after the other; see :func:`read_item`."""
    return [read_item(item) for item in items]
