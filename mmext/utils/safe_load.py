"""Read checkpoints and pickles without running code that is in them.

A pickle may call any function there is. Here, nothing that a file names is
imported or called: :mod:`mmext.utils.pickle_records` reads the pickle, and
:mod:`mmext.utils.plain_types` makes the values of the types that checkpoints
of MMEngine and PyTorch contain.

:func:`careful_readers` makes MMEngine's own readers as careful, through which
weights of an ``init_cfg`` and files of class weights are read.
:func:`read_weights` reads the checkpoints of trainings and tools.
"""

import io
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import torch
import yaml
from mmengine.fileio.handlers import PickleHandler, YamlHandler
from mmengine.fileio.handlers.registry_utils import file_handlers
from mmengine.logging import print_log

from .archive import DamagedFileError, check_archive
from .files import is_stream, load_yaml
from .pickle_records import read_records
from .plain_types import Maker, RefusedValueError, is_known
from .printing import printable_name
from .torch_files import open_checkpoint, read_names, read_torch_file

_TRUSTED = ContextVar('mmext_trust_checkpoint', default=False)
_TORCH_LOAD = torch.load
_MAX_NAMES = 5
_REMEDY = (
    'nothing of it was run. If you know where the file comes from, name it '
    'and use --trust-checkpoint, or trust_checkpoint = True in the config'
)


class UntrustedTypeError(ValueError):
    """A file contains something that may run code when it is read."""


def is_trusted() -> bool:
    """Whether files may run code when they are read, in this context."""
    return _TRUSTED.get()


def foreign_names(file: str | Path | IO[bytes]) -> list[str]:
    """Names in a checkpoint that are not allowed, as far as it is readable."""
    with open_checkpoint(file) as stream:
        return _foreign(read_names(stream))


def _foreign(names: Iterable[str]) -> list[str]:
    return [printable_name(name) for name in names if not is_known(name)]


def _refusal(
    what: str, names: list[str], source: str, error: Any = ''
) -> UntrustedTypeError:
    """Error for a file with foreign names, or with a value of no type."""
    shown = ', '.join(names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        shown += ', ...'
    shown = (
        f'holds {shown}, which is not plain data and may run code when it is '
        'read'
        if names
        else f'cannot be read without running what is in it ({error})'
    )
    return UntrustedTypeError(f'{what} {source!r} {shown}; {_REMEDY}')


# Reading ----------------------------------------------------------------


def load_torch(
    file: str | Path | IO[bytes],
    *,
    trust: bool | None = None,
    source: str | None = None,
    map_location: Any = None,
    mmap: bool = False,
) -> Any:
    """Read what ``torch.save`` wrote: tensors, plain values, known types.

    Known are the types in checkpoints of MMEngine, and in the public ones of
    CO-DETR, MMDetection and MMSegmentation: arrays and scalars of NumPy 1 and
    2, ``HistoryBuffer``, ``Config`` and ``ConfigDict``, ``Namespace`` and the
    like. A ``deque`` comes as a list, a ``defaultdict`` and an
    ``addict.Dict`` as a dict. Sparse and quantized tensors are not known.

    Args:
        file: A file, or its path.
        trust: Read any other type, too, which can run code; None for what
            :func:`careful_readers` has set.
        source: Name of the file in messages, by default its path.
        map_location: As of ``torch.load``. ``'meta'`` reads no tensors.
        mmap: Map tensors into memory, copy on write; a file by its path only.

    Raises:
        OSError: If it is not a regular file.
        UntrustedTypeError: If there are other types and no trust.
        DamagedFileError: If the file is damaged, cut off or no checkpoint.
    """
    source = str(file) if source is None else source
    is_path = isinstance(file, str | os.PathLike)
    mapped = os.fspath(file) if mmap and is_path else None
    try:
        with open_checkpoint(file) as stream:
            return read_torch_file(stream, map_location, mapped)
    except (DamagedFileError, RefusedValueError) as reason:
        names = foreign_names(file)
        if is_trusted() if trust is None else trust:
            print_log(
                f'checkpoint {source!r} is trusted: it is read with what it '
                f'may run ({", ".join(names[:_MAX_NAMES]) or reason})',
                logger='current',
                level=logging.WARNING,
            )
            return _load_trusted(file, source, map_location)
        if names or isinstance(reason, RefusedValueError):
            raise _refusal('checkpoint', names, source, reason) from None
        raise DamagedFileError(_damaged(source, reason)) from reason


def _load_trusted(file: Any, source: str, map_location: Any) -> Any:
    try:
        return _TORCH_LOAD(file, map_location, weights_only=False)
    # Code in the file can raise anything.
    except Exception as error:
        reason = f'{type(error).__name__}: {str(error).strip()[:200]}'
        raise DamagedFileError(_damaged(source, reason)) from error


def _damaged(source: str | Path, reason: Any) -> str:
    return (
        f'checkpoint {str(source)!r} is damaged: {reason}; copy or download '
        'it again, or take an earlier one'
    )


def _named_by_mmengine() -> str:
    """Return the path of the file that MMEngine's ``load`` is reading."""
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
        names: dict[str, None] = {}
        try:
            return Maker().make(read_records(file, names))
        except (DamagedFileError, RefusedValueError) as reason:
            source, foreign = _named_by_mmengine(), _foreign(names)
            if foreign or isinstance(reason, RefusedValueError):
                raise _refusal('file', foreign, source, reason) from None
            raise DamagedFileError(
                f'file {source!r} cannot be read: {reason}'
            ) from reason


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
            return load_yaml(file.read(), _PlainYaml)
        except yaml.constructor.ConstructorError as error:
            names = [str(error.problem)]
            raise _refusal('file', names, _named_by_mmengine()) from None
        except ValueError as error:
            raise ValueError(
                f'file {_named_by_mmengine()!r} cannot be read: {error}'
            ) from error


def _torch_load_of(source: str) -> Callable[..., Any]:
    """Return a careful ``torch.load``; messages name ``source``."""

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
        mmap = bool(options.get('mmap'))
        return load_torch(f, source=name, map_location=map_location, mmap=mmap)

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
        trust: Let files run code, inside; None keeps the outer setting.
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


# Config in the folder of a shared model.
CONFIG_FILE = 'config.json'


def is_pretrained(path: str | os.PathLike) -> bool:
    """Whether a path is the folder of a shared model."""
    return Path(path).expanduser().joinpath(CONFIG_FILE).is_file()


def check_paths(
    source: str | Path, target: str | Path, overwrite: bool
) -> None:
    """Raise if the source is missing, or the target must not be replaced."""
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
    """Return the dict that a checkpoint contains, on the CPU.

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
    except DamagedFileError as error:
        raise DamagedFileError(_damaged(source, error)) from error
    content = load_torch(source, trust=trust, map_location='cpu', mmap=mmap)
    return only_dict(content, source)


def only_dict(content: Any, source: str | Path) -> dict:
    """Return a checkpoint; ValueError if it, or a part, is not a dict."""
    if not isinstance(content, Mapping):
        raise ValueError(
            f'checkpoint {str(source)!r} must hold a dict, got '
            f'{type(content).__name__}'
        )
    parts = {name: content.get(name) for name in ('state_dict', 'meta')}
    if isinstance(parts['meta'], Mapping):
        parts['dataset_meta'] = parts['meta'].get('dataset_meta')
    for name, part in parts.items():
        if part is not None and not isinstance(part, Mapping):
            raise ValueError(
                f'checkpoint {str(source)!r} must hold a dict as {name!r}, '
                f'got {type(part).__name__}; take another checkpoint'
            )
    return content
