"""PyTorch backend for mmcv's compiled operators.

``import mmext`` offers it as ``mmcv._ext`` where mmcv has no compiled module;
mmcv's own Python API stays the one that is used. The operators themselves
are in the modules of this package, which load torch; this file does not before
an operator is asked for.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .choice import (
    active_backend,
    check_ops_backend,
    choose_ops_backend,
    log_backend,
)
from .finder import install_ext_finder
from .first_calls import compile_kernels

__all__ = [
    'active_backend',
    'apply_linear',
    'check_ops_backend',
    'choose_ops_backend',
    'compile_kernels',
    'install_ext_finder',
    'is_plain',
    'linear_product',
    'log_backend',
    'multi_scale_deform_attn',
]

# Loaded when they are asked for, each from its module.
_MODULES = {
    'apply_linear': 'linear',
    'is_plain': 'linear',
    'linear_product': 'linear',
    'multi_scale_deform_attn': 'ms_deform_attn',
}
apply_linear: Callable[..., Any]
is_plain: Callable[..., Any]
linear_product: Callable[..., Any]
multi_scale_deform_attn: Callable[..., Any]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'.{_MODULES[name]}', __name__), name)
