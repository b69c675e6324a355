"""PyTorch backend for mmcv's compiled operators.

``import mmext`` offers it as ``mmcv._ext`` where mmcv has no compiled module;
mmcv's own Python API stays the one that is used. The operators themselves
are in the modules of this package, which load torch; this file does not.
"""

from .finder import active_backend, install_ext_finder, log_backend

__all__ = [
    'active_backend',
    'install_ext_finder',
    'log_backend',
]
