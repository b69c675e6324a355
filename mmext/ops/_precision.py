"""How the operators treat half types and autocast."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ['exact', 'wide_type', 'widen']

P = ParamSpec('P')
T = TypeVar('T')


def wide_type(tensor: Tensor) -> torch.dtype:
    """Type that the arithmetic on a tensor is done in.

    Args:
        tensor: Any shape and type.

    Returns:
        float64 for float64, else float32.
    """
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def widen(tensor: Tensor) -> Tensor:
    """Give a tensor the type that the arithmetic is done in.

    Args:
        tensor: Any shape, a floating or an integer type.

    Returns:
        The values as float64 if they are float64, else as float32; the same
        tensor where nothing changes.

    Examples:
        >>> widen(torch.ones(2, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return tensor.to(wide_type(tensor))


def exact(op: Callable[P, T]) -> Callable[P, T]:
    """Run an operator without autograd and without autocast.

    mmcv calls the operators inside its autograd Functions, where autocast is
    still on and would turn their matrix products into half ones.

    Args:
        op: Operator whose first argument is a tensor.

    Returns:
        The operator with the same signature.
    """

    @wraps(op)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        first = next(iter((*args, *kwargs.values())))
        with (
            torch.no_grad(),
            torch.autocast(first.device.type, enabled=False),
        ):
            return op(*args, **kwargs)

    return run
