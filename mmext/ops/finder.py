"""Offer the PyTorch backend as ``mmcv._ext``, and say which one is used.

mmcv's operators import the compiled module ``mmcv._ext``; a plain install of
mmcv does not have it, and mmdet then cannot be imported. The finder here is
asked last, so whatever the other finders find wins: a compiled module is
used, and one that is present but broken still raises its own ImportError.

This file is imported by ``import mmext`` and must not import torch or mmcv
before a function is called.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = [
    'EXT_NAME',
    'VARIABLE',
    'ExtFinder',
    'ExtLoader',
    'active_backend',
    'install_ext_finder',
    'log_backend',
]

EXT_NAME = 'mmcv._ext'
# Environment variable that chooses among kernels, see ms_deform_attn.py.
VARIABLE = 'MMEXT_OPS'
_MESSAGES = {
    'compiled': 'mmcv operators: compiled',
    'mmext': (
        'mmcv operators: PyTorch backend of mmext (this mmcv was installed '
        'without compiled ones)'
    ),
}
_logged: set[str] = set()


class ExtLoader(Loader):
    """Fill a fresh module with the backend's operators."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create a plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the backend, and torch with it, and fill ``module``."""
        # Here and not at the top: `import mmext` stays free of torch.
        from .backend import fill_module

        fill_module(module)


class ExtFinder(MetaPathFinder):
    """Answer for ``mmcv._ext`` and for nothing else."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Spec of the PyTorch backend."""
        if fullname != EXT_NAME:
            return None
        return ModuleSpec(fullname, ExtLoader(), origin='mmext.ops')


def install_ext_finder() -> None:
    """Append the finder to ``sys.meta_path``, once per process.

    Examples:
        >>> import sys
        >>> from mmext.ops.finder import ExtFinder, install_ext_finder
        >>> install_ext_finder()
        >>> sum(isinstance(finder, ExtFinder) for finder in sys.meta_path)
        1
    """
    if not any(isinstance(finder, ExtFinder) for finder in sys.meta_path):
        sys.meta_path.append(ExtFinder())


def active_backend() -> str:
    """Name the implementation that mmcv's operators use in this process.

    Returns:
        ``'mmext'`` for the PyTorch backend of :mod:`mmext.ops`,
        ``'compiled'`` for whatever else is importable as ``mmcv._ext``.

    Raises:
        ModuleNotFoundError: If mmcv is not installed.

    Examples:
        >>> import mmext
        >>> from mmext.ops import active_backend
        >>> active_backend() in ('compiled', 'mmext')
        True
    """
    module = sys.modules.get(EXT_NAME)
    spec = find_spec(EXT_NAME) if module is None else module.__spec__
    loader = None if spec is None else spec.loader
    return 'mmext' if isinstance(loader, ExtLoader) else 'compiled'


def log_backend(logger: logging.Logger | str | None = 'current') -> None:
    """Log one line that says which operators are in use.

    The line is logged once per process and backend, however often this is
    called.

    Args:
        logger: Where the line goes, as in mmengine's ``print_log``:
            a logger, the name of an mmengine logger, ``'current'`` for the
            latest one, or None to print.

    Raises:
        ModuleNotFoundError: If mmcv is not installed.
    """
    # Here and not at the top: it loads torch.
    from mmengine.logging import print_log

    name = active_backend()
    if name not in _logged:
        _logged.add(name)
        numba = find_spec('numba') and os.environ.get(VARIABLE) != 'pytorch'
        print_log(
            f'{_MESSAGES[name]}; on CPUs, deformable attention of CO-DINO: '
            f'{"kernels of numba" if numba else "PyTorch"}',
            logger=logger,
        )
