"""Silence import-time messages of mmdet and mmseg, and defer what they import.

To be imported by a tool before anything of the hosts. While mmdet, mmseg and
their like are imported, they warn of packages that they could use, of their
own deprecated calls, and of what is not installed. None of that is about
the user's config or data. What they say later is: it stays.
"""

import ast
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import mmengine.logging
from mmengine.logging import logger as log_module
from mmengine.registry import Registry

from .broken_libraries import HOSTS
from .printing import PrintableRecord, printable

# Some of what they import warns of itself.
_HOSTS = {*HOSTS, 'albumentations', 'pkg_resources'}

_print_log = log_module.print_log
_show_warning = warnings.showwarning


def _callers() -> Iterator[FrameType]:
    """What is running now, from the inside to the outside."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _host_is_imported() -> bool:
    """Whether what is running now was called by the import of a host."""
    return any(
        frame.f_globals.get('__name__', '').partition('.')[0] in _HOSTS
        for frame in _callers()
        if frame.f_code.co_name == '<module>'
    )


def _show_others(message: Any, *args: Any, **kwargs: Any) -> None:
    """In place of :func:`warnings.showwarning`."""
    if not _host_is_imported():
        _show_warning(printable(str(message)), *args, **kwargs)


@contextmanager
def collected_warnings() -> Iterator[dict[str, bool]]:
    """Keep warnings for a report, instead of printing them.

    Yields:
        Each text once, with file and line, and whether a model was running:
        such a warning may be about its input. Those of hosts that are being
        imported are dropped.
    """
    texts: dict[str, bool] = {}

    def keep(
        message: Any, category: type, filename: str, lineno: int, *_: Any
    ) -> None:
        text = ' '.join(str(message).split())
        short = filename.rpartition('/site-packages/')[2]
        text = f'{category.__name__}: {text} ({short}:{lineno})'
        if not _host_is_imported():
            # What a module of PyTorch calls, by which it runs a model.
            codes = [frame.f_code.co_name for frame in _callers()]
            texts.setdefault(text, '_call_impl' in codes)

    before = warnings.showwarning
    warnings.showwarning = keep
    try:
        yield texts
    finally:
        warnings.showwarning = before


def _print_no_debug(
    msg: Any, logger: Any = None, level: int = logging.INFO
) -> None:
    """In place of MMEngine's, which prints even debug messages."""
    if logger is None and level <= logging.DEBUG:
        return
    if logger is None:
        msg = printable(str(msg))
    _print_log(msg, logger, level)


def quiet_imports() -> None:
    """Drop warnings and debug messages of hosts while they are imported."""
    # Else it asks the network for a newer version of itself, and warns.
    os.environ.setdefault('NO_ALBUMENTATIONS_UPDATE', '1')
    warnings.showwarning = _show_others
    mmengine.logging.print_log = log_module.print_log = _print_no_debug
    logging.setLogRecordFactory(PrintableRecord)


class _Deferred(ModuleType):
    """A module that runs when the first of its names is asked for.

    As those of :class:`importlib.util.LazyLoader`, which run at a look at
    ``__file__``, too: ``inspect`` takes one at each module there is.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__') and name not in ('__path__', '__all__'):
            raise AttributeError(name)
        self._run()
        return getattr(self, name)

    def _run(self) -> None:
        self.__class__ = ModuleType
        spec = self.__spec__
        if spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        try:
            spec.loader.exec_module(self)
        except BaseException:
            sys.modules.pop(spec.name, None)
            raise


# What registries of hosts load as a whole, and a check of labels has little
# use for: with it come runners, models, optimizers and packages for drawing.
_HOST_PACKAGES = (
    'mmdet.datasets',
    'mmdet.datasets.transforms',
    'mmseg.datasets',
    'mmseg.datasets.transforms',
)


class _Locations(list):
    """What a registry imports when it is asked: all that is deferred, too."""

    def __iter__(self) -> Iterator[str]:
        for name in _HOST_PACKAGES:
            module = sys.modules.get(name)
            if isinstance(module, _Deferred):
                module._run()
        return super().__iter__()


def defer_hosts() -> None:
    """Let data sets and transforms of hosts be imported one by one.

    Their packages run when one of their names, or a registry of the host, is
    asked for. Modules inside of them can be imported before.
    """
    defer_imports(_HOST_PACKAGES)
    for host in ('mmdet', 'mmseg'):
        for node in vars(import_module(f'{host}.registry')).values():
            own = isinstance(node, Registry) and node.scope == host
            if own and not isinstance(node._locations, _Locations):
                node._locations = _Locations(node._locations)


def deferred_names(package: str) -> dict[str, str]:
    """Module of each name that a deferred package lists; else empty."""
    module = sys.modules.get(package)
    if not isinstance(module, _Deferred):
        return {}
    return {
        alias.name: f'{package}.{node.module}'
        for node in ast.parse(Path(module.__spec__.origin).read_bytes()).body
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }


def defer_imports(
    names: Sequence[str] = ('matplotlib.pyplot', 'scipy.stats'),
) -> None:
    """Let modules that hosts import, and may never use, run at first use.

    For tools that have one thread when this happens. What is imported
    already stays, and what is not installed is left out.

    Args:
        names: Of modules, with the package. By default what draws, and what
            knows distributions: a tenth of the time of a check of labels.
    """
    for name in names:
        package, _, last = name.rpartition('.')
        if name in sys.modules or (package and find_spec(package) is None):
            continue
        spec = find_spec(name)
        if spec is None:
            continue
        module = module_from_spec(spec)
        if name not in _HOST_PACKAGES:
            vars(module).pop('__path__', None)
        module.__class__ = _Deferred
        sys.modules[name] = module
        if package:
            setattr(sys.modules[package], last, module)


quiet_imports()
