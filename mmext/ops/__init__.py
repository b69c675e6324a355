"""PyTorch backend for mmcv's compiled operators.

``import mmext`` offers it as ``mmcv._ext`` where mmcv has no compiled module;
mmcv's own Python API stays the one that is used. The operators themselves
are in the modules of this package, which load torch; this file does not before
an operator is asked for.
"""

from collections.abc import Callable
from typing import Any

from ..utils import lazy_names
from .choice import (
    ORDER,
    active_backend,
    check_ops_backend,
    choose_ops_backend,
    log_backend,
)
from .finder import install_ext_finder

__all__ = [
    'ORDER',
    'active_backend',
    'check_ops_backend',
    'choose_ops_backend',
    'install_ext_finder',
    'log_backend',
    'multi_scale_deform_attn',
]

__getattr__ = lazy_names(
    __name__, {'multi_scale_deform_attn': '.ms_deform_attn'}
)
multi_scale_deform_attn: Callable[..., Any]
