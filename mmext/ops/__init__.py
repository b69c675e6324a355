"""PyTorch backend for mmcv's compiled operators.

``import mmext`` offers it as ``mmcv._ext`` where mmcv has no compiled module;
mmcv's own Python API stays the one that is used. The operators themselves
are in the modules of this package, which load torch; this file does not before
an operator is asked for.
"""

from collections.abc import Callable
from typing import Any

from .choice import (
    check_ops_backend,
    choose_ops_backend,
    compile_kernels,
    log_backend,
)
from .finder import active_backend, install_ext_finder

__all__ = [
    'active_backend',
    'check_ops_backend',
    'choose_ops_backend',
    'compile_kernels',
    'install_ext_finder',
    'log_backend',
    'multi_scale_deform_attn',
]

# Loaded when it is asked for.
multi_scale_deform_attn: Callable[..., Any]


def __getattr__(name: str) -> Any:
    if name != 'multi_scale_deform_attn':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from .ms_deform_attn import multi_scale_deform_attn

    return multi_scale_deform_attn
