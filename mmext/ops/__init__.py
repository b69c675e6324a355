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
    active_backend,
    check_ops_backend,
    choose_ops_backend,
    log_backend,
)
from .finder import install_ext_finder

__all__ = [
    'active_backend',
    'apply_linear',
    'check_ops_backend',
    'choose_ops_backend',
    'install_ext_finder',
    'is_plain',
    'linear_product',
    'log_backend',
    'multi_scale_deform_attn',
]

__getattr__ = lazy_names(
    __name__,
    {
        'apply_linear': '.linear',
        'is_plain': '.linear',
        'linear_product': '.linear',
        'multi_scale_deform_attn': '.ms_deform_attn',
    },
)
apply_linear: Callable[..., Any]
is_plain: Callable[..., Any]
linear_product: Callable[..., Any]
multi_scale_deform_attn: Callable[..., Any]
