"""One file to read, and what comes of it; runs in any process.

A :class:`WorkItem` says what to read and how, :func:`read_item` reads it
through mmengine's file backends and gives a :class:`Result`, whose facts are
packed already, so that the process that collects them has little to do.
"""

import hashlib
import http.client
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from mmengine.fileio import get_file_backend

__all__ = [
    'ReadOptions',
    'Reader',
    'Result',
    'WorkItem',
    'failed_result',
    'read_batch',
    'read_content',
    'read_item',
    'reader_key',
    'reader_of',
    'stored_kind',
    'unpack',
]

DEFAULT_MAX_PIXELS = 178_956_970

# To be raised when a reader gives other facts for the same bytes than it
# gave before: files are then read anew.
_READER_VERSIONS = {'mask': 2, 'image': 2, 'voc': 1}

# What file backends raise for a file that they cannot give. HTTP's errors
# and those of the file system are OSError; a name that no file can have
# (a zero in it, not ASCII for LMDB, two '://') is a ValueError.
_FILE_ERRORS = (OSError, ValueError, http.client.HTTPException)
_ABSENT = (FileNotFoundError, NotADirectoryError)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How files are read; one object for all files of a data set.

    Attributes:
        deep: Decode images, too, not label maps alone.
        max_pixels: Larger images are refused, before memory is taken.
        backend_args: Of mmengine's file backend; None to choose it by the
            prefix of the path.
        verify: Hold the pixels of PNG label maps against their checksum,
            too. It takes as long as all else, and finds what memory had
            damaged before the file was written.
    """

    deep: bool = True
    max_pixels: int = DEFAULT_MAX_PIXELS
    backend_args: dict[str, Any] | None = None
    verify: bool = False


class WorkItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file to read.

    Attributes:
        path: Path, URL, or key of a data base, as the data set names it.
        kind: ``'mask'``, ``'image'``, ``'voc'``, or ``'package.module:name'``
            of a :class:`Reader`.
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
        version: Other facts for the same bytes need another version.
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
        failed: Whether the facts have an error.
    """

    path: str
    kind: str
    reader: str
    stamp: str
    facts: bytes
    failed: bool


def _mask_reader() -> Reader:
    from .facts import MaskFacts
    from .readers.mask_reader import read_mask_facts

    def read(content: bytes, options: ReadOptions) -> MaskFacts:
        return read_mask_facts(
            content, max_pixels=options.max_pixels, verify=options.verify
        )

    version = _READER_VERSIONS['mask']
    return Reader(facts=MaskFacts, read=read, version=version)


def _image_reader() -> Reader:
    from .facts import ImageFacts
    from .readers.image_reader import read_image_facts

    def read(content: bytes, options: ReadOptions) -> ImageFacts:
        return read_image_facts(
            content, deep=options.deep, max_pixels=options.max_pixels
        )

    version = _READER_VERSIONS['image']
    return Reader(facts=ImageFacts, read=read, version=version)


def _voc_reader() -> Reader:
    from .readers.voc_reader import VocFile, read_voc

    version = _READER_VERSIONS['voc']
    return Reader(
        facts=VocFile,
        read=lambda content, _: read_voc(content),
        version=version,
    )


_OURS = {'mask': _mask_reader, 'image': _image_reader, 'voc': _voc_reader}


@cache
def reader_of(kind: str) -> Reader:
    """Look up how a kind of file is read; loads decoders when first asked.

    Args:
        kind: As in :class:`WorkItem`.

    Returns:
        The reader.

    Raises:
        ValueError: If there is no such kind.
        TypeError: If ``kind`` names something that is no :class:`Reader`.
    """
    if kind in _OURS:
        return _OURS[kind]()
    module, colon, name = kind.partition(':')
    if not colon:
        raise ValueError(
            f"kind must be one of {sorted(_OURS)} or 'package.module:name' "
            f'of a Reader, got {kind!r}'
        )
    reader = getattr(importlib.import_module(module), name)
    if not isinstance(reader, Reader):
        raise TypeError(f'{kind} must be a Reader, got {type(reader)}')
    return reader


def stored_kind(item: WorkItem) -> str:
    """Kind under which facts are stored, apart for each file backend.

    Examples:
        >>> stored_kind(WorkItem(path='a.png', kind='mask'))
        'mask'
    """
    if not item.options.backend_args:
        return item.kind
    packed = msgspec.json.encode(
        item.options.backend_args, order='sorted', enc_hook=repr
    )
    return f'{item.kind}@{hashlib.sha256(packed).hexdigest()[:16]}'


def reader_key(item: WorkItem) -> str:
    """Version of the reader and the options that its facts depend on.

    Examples:
        >>> reader_key(WorkItem(path='a.png', kind='image'))
        '2 deep=True max_pixels=178956970 verify=False'
    """
    options = item.options
    version = reader_of(item.kind).version
    return (
        f'{version} deep={options.deep} max_pixels={options.max_pixels} '
        f'verify={options.verify}'
    )


@cache
def _packing(kind: str) -> tuple[Any, Any]:
    facts = reader_of(kind).facts
    return msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(facts)


def unpack(kind: str, facts: bytes) -> Any:
    """Facts of a kind of file, from their packed form.

    Raises:
        msgspec.DecodeError: If the bytes are no such facts.
    """
    return _packing(kind)[1].decode(facts)


def read_content(item: WorkItem) -> tuple[bytes | None, str]:
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
        return None, f'cannot be read: no file backend for {item.path!r}'
    try:
        content = backend.get(item.path)
    except _ABSENT as error:
        return None, f'missing: {error.strerror or error}'
    except _FILE_ERRORS as error:
        if getattr(error, 'code', None) in (404, 410):
            return None, f'missing: {error}'
        return None, f'cannot be read: {type(error).__name__}: {error}'
    if content is None:
        return None, 'missing: the file backend has nothing of this name'
    return bytes(content), ''


def failed_result(item: WorkItem, error: str, stamp: str = '') -> Result:
    """Result for a file of which nothing but an error is known.

    Args:
        item: The file.
        error: What is wrong.
        stamp: Empty to have it read again next time.

    Returns:
        Facts with that error, packed.
    """
    facts = reader_of(item.kind).facts(error=error)
    return _result(item, facts, stamp)


def _result(item: WorkItem, facts: Any, stamp: str) -> Result:
    return Result(
        path=item.path,
        kind=stored_kind(item),
        reader=reader_key(item),
        stamp=stamp,
        facts=_packing(item.kind)[0].encode(facts),
        failed=bool(facts.error),
    )


def read_item(item: WorkItem) -> Result:
    """Read one file.

    A file that is missing, or that cannot be read, has facts with an error
    that begins with ``'missing: '`` or ``'cannot be read: '``; the latter
    are stored without a stamp, as access rights and networks change without
    a change of the file.

    Args:
        item: The file.

    Returns:
        Its facts, packed. Without facts if the bytes are those of
        ``item.known``.

    Raises:
        ValueError: If the options name a file backend that mmengine lacks.
        ImportError: If the package of the file backend is not installed.
    """
    content, error = read_content(item)
    if content is None:
        # A file that went away after it was looked at may come back as it
        # was, so nothing is remembered of it.
        absent = error.startswith('missing') and item.stamp == 'absent'
        return failed_result(item, error, item.stamp if absent else '')
    stamp = item.stamp
    if not stamp:
        stamp = f'sha256:{hashlib.sha256(content).hexdigest()}'
        if stamp == item.known:
            return Result(
                path=item.path,
                kind=stored_kind(item),
                reader=reader_key(item),
                stamp=stamp,
                facts=b'',
                failed=False,
            )
    facts = reader_of(item.kind).read(content, item.options)
    return _result(item, facts, stamp)


def read_batch(items: Sequence[WorkItem]) -> list[Result]:
    """Read files one after the other; see :func:`read_item`."""
    return [read_item(item) for item in items]
