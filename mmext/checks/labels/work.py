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
    """A file to read.

    Attributes:
        path: Path, URL, or key of a data base, as the data set names it.
        kind: One of :data:`READERS`.
        backend_args: Of mmengine's file backend; None to choose it by the
            prefix of the path. One object for all files of a data set.
        kpt_shape: Of the key points in YOLO's label files; empty for none.
        stamp: What the file was when it was looked at, such as its size and
            time of change; empty if only its bytes can tell.
        known: Stamp under which facts are stored already; a file whose bytes
            still have it is not decoded again.
    """

    path: str
    kind: str
    backend_args: dict[str, Any] | None = None
    kpt_shape: tuple[int, ...] = ()
    stamp: str = ''
    known: str = ''


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """How to read one kind of file.

    Attributes:
        facts: Type of the facts; it must have a field ``error``.
        read: Bytes, and the shape of key points if there are any -> facts;
            raises nothing for bad bytes.
        version: To be raised when the same bytes give other facts than
            before: files are then read anew.
    """

    facts: type
    read: Callable[..., Any]
    version: int = 1


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one file, as it is stored.

    Attributes:
        path: As in :class:`WorkItem`.
        kind: Key in the store, of :func:`stored_kind`.
        reader: Version of the reader.
        stamp: Of the file; empty for facts that must not be used again.
        facts: Packed facts; empty if those that are stored still hold.
    """

    path: str
    kind: str
    reader: str
    stamp: str
    facts: bytes


def _late(name: str, function: str, *args: Any) -> Callable:
    """A reader; its decoders are loaded with the first file that it reads."""

    def read(content: bytes, *more: Any) -> Any:
        module = import_module(f'{__package__}.readers.{name}')
        return getattr(module, function)(content, *args, *more)

    return read


READERS = {
    'mask': Reader(
        facts=MaskFacts, read=_late('image', 'read_mask_facts'), version=4
    ),
    # The checksum of the pixels of PNG files is compared, too.
    'verified_mask': Reader(
        facts=MaskFacts,
        read=_late('image', 'read_mask_facts', True),
        version=4,
    ),
    'image': Reader(
        facts=ImageFacts, read=_late('image', 'read_image_facts'), version=3
    ),
    'voc': Reader(facts=VocFile, read=_late('voc', 'read_voc'), version=3),
    'yolo': Reader(facts=YoloFile, read=_late('yolo', 'read_yolo'), version=2),
    'npy_image': Reader(facts=ImageFacts, read=_late('npy', 'read_npy_image')),
    'npy_mask': Reader(facts=MaskFacts, read=_late('npy', 'read_npy_mask')),
    'npy_depth': Reader(
        facts=ImageFacts, read=_late('npy', 'read_npy_map', 'depth')
    ),
    'npy_normal': Reader(
        facts=ImageFacts, read=_late('npy', 'read_npy_map', 'normal')
    ),
}


def read_facts(
    content: bytes, kind: str, kpt_shape: tuple[int, ...] = ()
) -> Any:
    """Facts of the bytes of a file; only YOLO's labels have key points."""
    return READERS[kind].read(content, *((kpt_shape,) if kpt_shape else ()))


def stored_kind(item: WorkItem) -> str:
    """Kind of facts in the store, apart by file backend and key points."""
    if not item.backend_args and not item.kpt_shape:
        return item.kind
    options = item.backend_args, *item.kpt_shape
    packed = msgspec.json.encode(options, order='sorted', enc_hook=repr)
    return f'{item.kind}@{hashlib.sha256(packed).hexdigest()[:16]}'


_ENCODER = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: str) -> msgspec.msgpack.Decoder:
    return msgspec.msgpack.Decoder(READERS[kind].facts)


def unpack(kind: str, facts: bytes) -> Any:
    """Facts of a kind of file, from their packed form."""
    return _decoder(kind).decode(facts)


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


def failed_result(item: WorkItem, error: ReadError, stamp: str = '') -> Result:
    """Result for a file of which nothing but an error is known.

    Without a stamp it is read again next time.
    """
    return _result(item, READERS[item.kind].facts(error=error), stamp)


def _result(item: WorkItem, facts: Any, stamp: str) -> Result:
    return Result(
        path=item.path,
        kind=stored_kind(item),
        reader=str(READERS[item.kind].version),
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
    with ErrorCatcher(failed.append):
        facts = read_facts(content, item.kind, item.kpt_shape)
        return _result(item, facts, stamp)
    reason = f'the reader ended with {type(failed[0]).__name__}: {failed[0]}'
    place = code_location(failed[0])
    return failed_result(item, _unavailable(f'{reason} ({place})'))


def read_batch(items: Sequence[WorkItem]) -> list[Result]:
    """Read files one after the other; see :func:`read_item`."""
    return [read_item(item) for item in items]
