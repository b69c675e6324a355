"""Which implementation of mmcv's operators is in use.

Imported by ``import mmext``, so neither torch nor mmcv is imported here
before a function is called.
"""

import logging
import sys
from importlib.util import find_spec

from .finder import EXT_NAME, ExtLoader

__all__ = ['active_backend', 'log_backend']

_MESSAGES = {
    'compiled': 'mmcv operators: compiled',
    'mmext': (
        'mmcv operators: PyTorch backend of mmext (this mmcv was installed '
        'without compiled ones)'
    ),
}
_logged: set[str] = set()


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
        print_log(_MESSAGES[name], logger=logger)
