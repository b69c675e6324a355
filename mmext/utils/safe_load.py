"""Read checkpoints and pickles without running code that is in them.

A pickle may call any function there is. PyTorch's ``weights_only`` allows the
types of plain weights only, which the checkpoints of MMEngine are not: their
metadata hold numpy values, ``HistoryBuffer`` and more. :func:`load_torch`
allows these, each by a constructor that can do nothing else.

:func:`careful_readers` makes MMEngine's own readers as careful, through which
weights of an ``init_cfg`` and files of class weights are read.
:func:`read_weights` is what else reads a file: a training, a tool.
"""

import argparse
import datetime
import io
import logging
import os
import pickle
import pickletools
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import numpy as np
import torch
import yaml
from mmengine.config import Config, ConfigDict
from mmengine.fileio.handlers import PickleHandler, YamlHandler
from mmengine.fileio.handlers.registry_utils import file_handlers
from mmengine.logging import HistoryBuffer, print_log

from .archive import DamagedFileError, check_archive
from .files import is_stream

_TRUSTED = ContextVar('mmext_trust_checkpoint', default=False)
_TORCH_LOAD = torch.load
_MAX_NAMES = 5
# What torch.load raises for files that are cut off, damaged, or no
# checkpoints at all.
READ_ERRORS = (
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
# Of a file before PyTorch 1.6: a number, a version, the system, the content,
# and the keys of the storages, which follow.
_MAX_PICKLES = 5
_REMEDY = (
    'nothing of it was run. If you know where the file comes from, name it '
    'and use --trust-checkpoint, or trust_checkpoint = True in the config'
)


class UntrustedTypeError(ValueError):
    """A file holds something that may run code when it is read."""


def is_trusted() -> bool:
    """Whether files may run code when they are read, here and now."""
    return _TRUSTED.get()


# What is allowed --------------------------------------------------------

_ALLOWED: dict[str, Any] = {}


def _allow(*names: str) -> Callable[[Any], Any]:
    """Let a constructor stand for what pickles call by these names.

    One copy for each name: PyTorch before 2.6 knows what is allowed only by
    ``__module__`` and ``__name__``.
    """

    def register(function: Any) -> Any:
        for full in names:
            module, name = full.rsplit('.', 1)

            def constructor(*args: Any, _function: Any = function) -> Any:
                return _function(*args)

            constructor.__module__ = module
            constructor.__name__ = constructor.__qualname__ = name
            _ALLOWED[full] = constructor
        return function

    return register


# numpy 1 and numpy 2 have the same functions in different places.
_MULTIARRAY = ('numpy.core.multiarray', 'numpy._core.multiarray')


@_allow(*(f'{module}._reconstruct' for module in _MULTIARRAY))
def _array(kind: type, shape: tuple, code: Any) -> np.ndarray:
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f'an array of type {kind}')
    return np.ndarray.__new__(np.ndarray, (0,), 'b')


@_allow(*(f'{module}.scalar' for module in _MULTIARRAY))
def _scalar(dtype: np.dtype, data: bytes = b'') -> Any:
    if not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise pickle.UnpicklingError(f'a scalar of type {dtype}')
    if isinstance(data, str):
        data = data.encode('latin1')
    if not dtype.itemsize:
        return np.zeros((), dtype)[()]
    return np.frombuffer(data, dtype, 1)[0]


@_allow('numpy.core.numeric._frombuffer', 'numpy._core.numeric._frombuffer')
def _from_buffer(
    data: Any, dtype: np.dtype, shape: tuple, order: str
) -> np.ndarray:
    return np.frombuffer(data, dtype).reshape(shape, order=order)


class _OneCycle:
    """Stands for the class whose functions a schedule keeps in its state."""

    __module__ = 'mmengine.optim.scheduler.param_scheduler'
    __qualname__ = 'OneCycleParamScheduler'

    def __new__(cls, *args: Any) -> None:
        raise pickle.UnpicklingError('an object of OneCycleParamScheduler')


# Functions that are found by their class.
_FUNCTIONS = {
    HistoryBuffer: ('current', 'max', 'mean', 'min'),
    _OneCycle: ('_annealing_cos', '_annealing_linear'),
}


@_allow('builtins.getattr', '__builtin__.getattr')
def _function_of(owner: Any, name: str) -> Any:
    known = isinstance(owner, type) and owner in _FUNCTIONS
    if not known or name not in _FUNCTIONS[owner]:
        raise pickle.UnpicklingError(f'the attribute {name!r} of {owner!r}')
    if owner is _OneCycle:
        # Not at the top: a check of labels needs no optimizers.
        from mmengine.optim import OneCycleParamScheduler as owner
    return getattr(owner, name)


# PyTorch's reader fills lists and dicts only, so that is what these become.
@_allow('collections.deque')
def _list(items: Any = (), length: Any = None) -> list:
    return list(items)


@_allow('collections.defaultdict')
def _dict(factory: Any = None, items: Any = ()) -> dict:
    return dict(items)


@_allow('pathlib.PosixPath', 'pathlib._local.PosixPath')
def _path(*parts: str) -> Path:
    return Path(*parts)


for _kind in (set, frozenset, complex, slice, range, bytes, bytearray):
    _allow(f'builtins.{_kind.__name__}', f'__builtin__.{_kind.__name__}')(
        _kind
    )
_allow('__builtin__.xrange')(range)
for _kind in (datetime.date, datetime.datetime, datetime.timedelta):
    _allow(f'datetime.{_kind.__name__}')(_kind)


class _AddictDict:
    """Stands for ``addict.Dict``; makes a dict that can be filled."""

    def __new__(cls, *args: Any) -> OrderedDict:
        return OrderedDict()


_AddictDict.__module__ = 'addict.addict'
_AddictDict.__name__ = _AddictDict.__qualname__ = 'Dict'
_OneCycle.__name__ = _OneCycle.__qualname__
# Types of which objects are filled after they are made, under their own
# names. dict and list are what a defaultdict makes.
for _kind in (
    _AddictDict,
    _OneCycle,
    Config,
    ConfigDict,
    HistoryBuffer,
    argparse.Namespace,
    dict,
    list,
    np.dtype,
    np.ndarray,
):
    _ALLOWED[f'{_kind.__module__}.{_kind.__qualname__}'] = _kind
_DTYPES = {
    type(np.dtype(code))
    for code in (*np.typecodes['All'], *'SUV', 'M8[ns]', 'm8[ns]')
}


@cache
def _safe_globals() -> list[Any]:
    return [*_ALLOWED.values(), *_DTYPES]


@contextmanager
def _allowing() -> Iterator[None]:
    """Let PyTorch's careful reader make what is allowed here."""
    serialization = torch.serialization
    if hasattr(serialization, 'safe_globals'):
        with serialization.safe_globals(_safe_globals()):
            yield
        return
    # PyTorch 2.4 has the list, and no way to take single entries out.
    before = serialization.get_safe_globals()
    serialization.add_safe_globals(_safe_globals())
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


# Names in a pickle ------------------------------------------------------


def _names_in(stream: IO[bytes]) -> Iterator[str]:
    """Full names of what the pickles of a stream ask for; runs nothing."""
    strings: list[str] = []
    memo: dict[int, str] = {}
    for _ in range(_MAX_PICKLES):
        if not stream.read(1):
            return
        stream.seek(-1, 1)
        is_string = False
        for code, value, _ in pickletools.genops(stream):
            if code.name in ('GLOBAL', 'INST'):
                yield value.replace(' ', '.')
            elif code.name == 'STACK_GLOBAL':
                yield '.'.join(strings[-2:])
            elif code.name == 'MEMOIZE' or code.name.endswith('PUT'):
                key = len(memo) if code.name == 'MEMOIZE' else int(value)
                memo[key] = strings[-1] if is_string else ''
            elif code.name.endswith('GET'):
                strings.append(memo.get(int(value), ''))
                is_string = True
            else:
                is_string = isinstance(value, str)
                if is_string:
                    strings.append(value)


def foreign_names(file: str | Path | IO[bytes]) -> list[str]:
    """Names in a checkpoint that are not allowed, as far as it is readable."""
    known = torch._weights_only_unpickler._get_allowed_globals()
    names: dict[str, None] = {}
    # Damage ends it, and so does what follows the pickles.
    ends = suppress(EOFError, IndexError, UnicodeError, ValueError)
    with _pickle_of(file) as stream, ends:
        for name in _names_in(stream):
            names[name] = None
    return [
        name
        for name in names
        if name not in _ALLOWED
        and name.replace('__builtin__', 'builtins') not in known
    ]


@contextmanager
def _pickle_of(file: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """The pickle of a checkpoint, of PyTorch's format since 1.6 or before."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if name.rpartition('/')[2] == 'data.pkl':
                    yield io.BytesIO(archive.read(name))
                    return
            yield io.BytesIO()
    elif isinstance(file, str | Path):
        with open(file, 'rb') as stream:
            yield stream
    else:
        file.seek(0)
        yield file
        file.seek(0)


def _refusal(what: str, names: list[str], source: str) -> UntrustedTypeError:
    shown = ', '.join(names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        shown += ', ...'
    return UntrustedTypeError(
        f'{what} {source!r} holds {shown}, which is not plain data and may '
        f'run code when it is read; {_REMEDY}'
    )


# Reading ----------------------------------------------------------------


def load_torch(
    file: str | Path | IO[bytes],
    *,
    trust: bool | None = None,
    source: str | None = None,
    **options: Any,
) -> Any:
    """Read what ``torch.save`` wrote: tensors, plain values, known types.

    Known are those that checkpoints of MMEngine hold, and CO-DETR's, mmdet's
    and mmseg's public ones: numpy's arrays and scalars of numpy 1 and 2,
    ``HistoryBuffer``, ``Config`` and ``ConfigDict``, ``Namespace`` and the
    like. A ``deque`` comes as a list, a ``defaultdict`` and an
    ``addict.Dict`` as a dict.

    Args:
        file: A file, or its path.
        trust: Read any other type, too, which can run code; None for what
            :func:`careful_readers` has set.
        source: What to call it in messages, by default its path.
        **options: Of ``torch.load``: ``map_location``, ``mmap``.

    Raises:
        UntrustedTypeError: If there are other types and no trust.
        Exception: Whatever ``torch.load`` raises for a damaged file.
    """
    source = str(file) if source is None else source
    if trust is None:
        trust = is_trusted()
    try:
        with _allowing(), warnings.catch_warnings():
            # About pickle protocols; what cannot be read is an error.
            warnings.filterwarnings('ignore', 'Detected pickle protocol')
            return _TORCH_LOAD(file, weights_only=True, **options)
    except pickle.UnpicklingError as error:
        names = foreign_names(file)
        if trust:
            print_log(
                f'checkpoint {source!r} is trusted: it is read with what it '
                f'may run ({", ".join(names[:_MAX_NAMES]) or error})',
                logger='current',
                level=logging.WARNING,
            )
            return _TORCH_LOAD(file, weights_only=False, **options)
        if names:
            raise _refusal('checkpoint', names, source) from None
        if zipfile.is_zipfile(file):
            lines = [line.strip() for line in str(error).splitlines()]
            reason = next((line for line in lines if 'error:' in line), lines)
            raise UntrustedTypeError(
                f'checkpoint {source!r} cannot be read without running what '
                f'is in it ({reason}); {_REMEDY}'
            ) from None
        raise


_PLAIN_PICKLES = {
    f'{kind.__module__}.{kind.__qualname__}': kind
    for kind in (OrderedDict, np.dtype, np.ndarray)
} | {
    name: value
    for name, value in _ALLOWED.items()
    if name.startswith(('builtins.', '__builtin__.', 'numpy.'))
    and not name.endswith('getattr')
}


class _PlainUnpickler(pickle.Unpickler):
    """Reads built-in types and numpy's, none of which can be changed."""

    source = ''

    def find_class(self, module: str, name: str) -> Any:
        full = f'{module}.{name}'
        if full == '_codecs.encode':
            return _encode
        if full not in _PLAIN_PICKLES:
            raise _refusal('file', [full], self.source)
        return _PLAIN_PICKLES[full]


def _encode(text: str, encoding: str = 'latin1') -> bytes:
    """How protocol 2 writes bytes."""
    if encoding != 'latin1':
        raise pickle.UnpicklingError(f'an encoding {encoding!r}')
    return text.encode('latin1')


def _named_by_mmengine() -> str:
    """The file that MMEngine's ``load`` reads; it gives readers no name."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get('__name__') == 'mmengine.fileio.io' and (
            frame.f_code.co_name == 'load'
        ):
            return str(frame.f_locals.get('file'))
        frame = frame.f_back
    return 'a pickle'


class _CarefulPickles(PickleHandler):
    """MMEngine's reader of ``.pkl`` files, for plain data only."""

    def load_from_fileobj(self, file: IO[bytes], **kwargs: Any) -> Any:
        if is_trusted():
            return super().load_from_fileobj(file, **kwargs)
        reader = _PlainUnpickler(file, **kwargs)
        reader.source = _named_by_mmengine()
        return reader.load()


class _PlainYaml(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):
    """Values, lists, dicts, and the tuples that MMEngine writes."""


_PlainYaml.add_constructor(
    'tag:yaml.org,2002:python/tuple',
    lambda loader, node: tuple(loader.construct_sequence(node, deep=True)),
)


class _CarefulYaml(YamlHandler):
    """MMEngine's reader of YAML, which by default makes any object."""

    def load_from_fileobj(self, file: IO[str], **kwargs: Any) -> Any:
        if is_trusted():
            return super().load_from_fileobj(file, **kwargs)
        try:
            return yaml.load(file, **{**kwargs, 'Loader': _PlainYaml})
        except yaml.constructor.ConstructorError as error:
            raise _refusal(
                'file', [str(error.problem)], _named_by_mmengine()
            ) from None


def _torch_load_of(source: str) -> Callable[..., Any]:
    """A ``torch.load`` that is careful; ``source`` is said in messages."""

    def load(
        f: Any,
        map_location: Any = None,
        pickle_module: Any = None,
        *,
        weights_only: bool | None = None,
        **options: Any,
    ) -> Any:
        name = source or str(f)
        if isinstance(f, str | os.PathLike | io.BytesIO):
            try:
                check_archive(f)
            except DamagedFileError as error:
                raise DamagedFileError(_damaged(name, error)) from error
        return load_torch(f, source=name, map_location=map_location, **options)

    return load


@contextmanager
def careful_readers(
    trust: bool | None = None, torch_load: bool = False
) -> Iterator[None]:
    """Make MMEngine's readers of checkpoints and data as careful as ours.

    Inside, ``CheckpointLoader`` (whatever the address, and so ``init_cfg``
    and ``load_checkpoint``), and ``mmengine.load`` of ``.pkl`` and YAML files
    refuse what is not plain data. Where nothing has loaded that class yet,
    ``torch.load`` is as careful instead, by which it would read.

    Args:
        trust: Let files run code, inside; None for what is set outside.
        torch_load: ``torch.load`` is as careful, too, whoever calls it.
    """
    token = _TRUSTED.set(is_trusted() if trust is None else bool(trust))
    checkpoints = sys.modules.get('mmengine.runner.checkpoint')
    loader = getattr(checkpoints, 'CheckpointLoader', None)
    bound = getattr(loader, 'load_checkpoint', None)

    def load_checkpoint(filename: str, *args: Any, **kwargs: Any) -> Any:
        with patch.object(torch, 'load', _torch_load_of(str(filename))):
            return bound(filename, *args, **kwargs)

    handlers = {
        **dict.fromkeys(('pkl', 'pickle'), _CarefulPickles()),
        **dict.fromkeys(('yaml', 'yml'), _CarefulYaml()),
    }
    careful = staticmethod(load_checkpoint)
    for_all = torch_load or loader is None
    any_load = _torch_load_of('') if for_all else torch.load
    try:
        with (
            patch.object(loader, 'load_checkpoint', careful)
            if loader
            else nullcontext(),
            patch.dict(file_handlers, handlers),
            patch.object(torch, 'load', any_load),
        ):
            yield
    finally:
        _TRUSTED.reset(token)


# Of a folder that a model was shared in.
CONFIG_FILE = 'config.json'


def is_pretrained(path: str | os.PathLike) -> bool:
    """Whether a path is a folder that a model was shared in."""
    return Path(path).expanduser().joinpath(CONFIG_FILE).is_file()


def check_paths(
    source: str | Path, target: str | Path, overwrite: bool
) -> None:
    """Raise if there is no source, or a target that must not be replaced."""
    if not Path(source).is_file():
        raise FileNotFoundError(f'source must be a file, got {source}')
    if Path(target).exists() and not (overwrite or is_stream(target)):
        raise FileExistsError(
            f'target must not exist, got {target}; choose another name or '
            'ask to overwrite it'
        )


def read_weights(
    source: str | Path,
    trust: bool | None,
    *,
    mmap: bool = False,
    verify: bool = True,
) -> dict:
    """The dict that a checkpoint holds, on the CPU.

    Args:
        source: A local file.
        trust: Read any type, which can run code.
        mmap: Leave the weights on the disk until they are used.
        verify: Compare the checksums first, about a second for each gigabyte.

    Raises:
        ValueError: If the file is damaged or no checkpoint, holds no dict,
            or holds more than weights and ``trust`` is False.
    """
    try:
        if verify and not check_archive(source):
            print_log(
                f'{source} has no checksums (it is of PyTorch before 1.6, or '
                'was saved without): damage would not be noticed',
                logger='current',
                level=logging.WARNING,
            )
        # Torch's old format cannot be mapped.
        mmap = mmap and zipfile.is_zipfile(source)
        content = load_torch(
            source, trust=trust, map_location='cpu', mmap=mmap
        )
    except UntrustedTypeError:
        raise
    except DamagedFileError as error:
        raise ValueError(_damaged(source, error)) from error
    except READ_ERRORS as error:
        raise ValueError(
            f'checkpoint {str(source)!r} cannot be read: it is damaged, cut '
            f'off or no PyTorch checkpoint ({Path(source).stat().st_size} '
            f'bytes; {type(error).__name__}: {str(error).strip()[:200]}); '
            'copy or download it again, or take another one'
        ) from error
    return only_dict(content, source)


def _damaged(source: str | Path, error: DamagedFileError) -> str:
    return (
        f'checkpoint {str(source)!r} is damaged: {error}; copy or download it '
        'again, or take an earlier one'
    )


def only_dict(content: Any, source: str | Path) -> dict:
    """What a checkpoint holds; ValueError if that is no dict."""
    if not isinstance(content, Mapping):
        raise ValueError(
            f'checkpoint {str(source)!r} must hold a dict, got '
            f'{type(content).__name__}'
        )
    return content
