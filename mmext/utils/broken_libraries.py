"""Name a library that is installed and cannot be imported, and the remedy.

MMDetection, MMSegmentation and mmext work without an optional library that is
not installed. An installed library that is broken, such as a torchvision for
another torch, ends their import with an error that names neither the library
nor the remedy.

``import mmext`` loads this file, which imports the standard library only.
"""

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import (
    PackageNotFoundError,
    packages_distributions,
    requires,
    version,
)
from types import FrameType, ModuleType
from typing import Any

from .host_packages import DISTRIBUTIONS, MissingHostError

HOSTS = (
    'mmcv',
    'mmdet',
    'mmdet3d',
    'mmengine',
    'mmocr',
    'mmpose',
    'mmpretrain',
    'mmrotate',
    'mmseg',
)
_IMPORTERS = ('mmext', *HOSTS)
_IMPORT_SYSTEM = ('importlib._bootstrap', 'importlib._bootstrap_external')
_NO_FILE = re.compile(r'(\S+): cannot open shared object file')
# Built-in kinds of errors: a fallback of the importer catches them by these.
_KINDS = (ImportError, OSError, AttributeError, ValueError, RuntimeError)


class BrokenLibraryError(Exception):
    """A library is installed and cannot be imported."""

    def __reduce__(self) -> tuple:
        # Another process can only unpickle a class that has a name.
        return BrokenLibraryError, self.args


class LibraryFinder(MetaPathFinder):
    """Find the libraries that a host package or mmext imports.

    The next finders find them; their loaders get better error messages. A
    host package that mmext imports, and nothing finds, is an error with the
    command that installs it.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of the next finders, with another loader."""
        if '.' in fullname or fullname in sys.stdlib_module_names:
            return None
        is_host = fullname in DISTRIBUTIONS
        if (fullname in _IMPORTERS and not is_host) or not _importers():
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find_spec = getattr(finder, 'find_spec', None)
            spec = find_spec and find_spec(fullname, path, target)
            if spec:
                if hasattr(spec.loader, 'exec_module') and not is_host:
                    spec.loader = _Loader(spec.loader)
                return spec
        if is_host and _importers()[0] == 'mmext':
            raise MissingHostError(fullname)
        return None


class _Loader:
    """Loader of a library with better error messages."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module under its own loader."""
        module.__loader__ = module.__spec__.loader = self._loader
        try:
            self._loader.exec_module(module)
        except (BrokenLibraryError, ModuleNotFoundError):
            raise
        except Exception as error:
            text = _explain(module.__name__, error)
            if not text:
                raise
            kinds = [kind for kind in _KINDS if isinstance(error, kind)]
            bases = (BrokenLibraryError, *kinds[:1])
            raise type('BrokenLibraryError', bases, {})(text) from error


def install_library_finder() -> None:
    """Put the finder in front of ``sys.meta_path``, once per process."""
    if not any(type(finder) is LibraryFinder for finder in sys.meta_path):
        sys.meta_path.insert(0, LibraryFinder())


def _importers() -> list[str]:
    """Return the packages of the present import, outermost first.

    The first is a host package or mmext. Empty if neither imports anything,
    and for a module that a config names: that is code of the user.
    """
    names = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get('__name__', '')
        if name not in (__name__, *_IMPORT_SYSTEM):
            names.append(name.partition('.')[0])
            if names[-1] in _IMPORTERS:
                if names[:-1] == ['importlib']:
                    return []
                chain = dict.fromkeys(reversed(names))
                return [name for name in chain if name != 'importlib']
        frame = frame.f_back
    return []


def _explain(library: str, error: Exception) -> str:
    """Return an error message with reason and remedy; '' for other code."""
    package = packages_distributions().get(library, [library])[0]
    try:
        release = version(package)
    except PackageNotFoundError:
        return ''
    needs = {
        re.split(r'[^\w.-]', line)[0]
        for line in requires(package) or ()
        if 'extra' not in line
    }
    text = ' '.join(str(error).split())
    lacking = _NO_FILE.search(text)
    reason = 'cannot be imported'
    remedy = f'reinstall it: pip install --force-reinstall {package}'
    if 'torch' in needs:
        torch = version('torch')
        reason = f'was built for another torch than {torch}'
        remedy = (
            f'install the {library} that was built for torch {torch}, from '
            'the index that torch was installed from; or uninstall '
            f'{package}, if nothing else needs it'
        )
    elif 'numpy' in needs and 'numpy' in text:
        reason = f'was built for another numpy than {version("numpy")}'
        remedy = f'install a {library} that was built for this numpy'
    elif lacking:
        reason = f'lacks {lacking[1]}'
        remedy = f'install the system package that contains {lacking[1]}'
    host, *others = _importers()
    by = f' through {" and ".join(others)}' if others else ''
    return (
        f'{library} {release} {reason}, and {host} imports it{by} '
        f'({type(error).__name__}: {text}); {remedy}'
    )
