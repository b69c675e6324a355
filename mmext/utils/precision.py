"""How values get their type and their device."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

__all__ = [
    'exact',
    'float32_region',
    'to_device',
    'to_float32',
    'wide_type',
    'widen',
]

P = ParamSpec('P')
T = TypeVar('T')


def wide_type(tensor: Tensor) -> torch.dtype:
    """Type that the arithmetic on a tensor is done in.

    ``tensor``: Any shape and type. Returns float64 for float64, else float32.
    """
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def widen(tensor: Tensor) -> Tensor:
    """Give a tensor the type that the arithmetic is done in.

    ``tensor``: Any shape, a floating or an integer type. Returns the values as
    float64 if they are float64, else as float32; the same tensor where nothing
    changes.
    """
    return tensor.to(wide_type(tensor))


def exact(op: Callable[P, T]) -> Callable[P, T]:
    """Run an operator without autograd and without autocast.

    mmcv calls the operators inside its autograd Functions, where autocast is
    still on and would turn their matrix products into half ones.
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


def float32_region(tensor: Tensor) -> AbstractContextManager:
    """Context in which autocast is off for the device of ``tensor``.

    Box areas, IoU, matching costs and sampling locations overflow or lose
    pixels in half precision: a box area above 65504 px is inf in float16, and
    bfloat16 places a point of a 320 px wide map only to 0.6 px.
    """
    kind = tensor.device.type
    # The meta device has no autocast, and an export would wrap the region.
    if tensor.is_meta or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(device_type=kind, enabled=False)


def to_float32(value: Any) -> Any:
    """Cast every floating tensor in nested lists, tuples and dicts.

    Returns the same structure with half-precision tensors in float32.
    """
    if isinstance(value, Tensor):
        half = value.dtype in (torch.float16, torch.bfloat16)
        return value.float() if half else value
    if isinstance(value, list | tuple):
        return type(value)(to_float32(item) for item in value)
    if isinstance(value, dict):
        return {key: to_float32(item) for key, item in value.items()}
    return value


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device, without waiting where that is a GPU."""
    cuda = device.type == 'cuda'
    dtype = getattr(torch, values.dtype.name)
    tensor = torch.empty(values.shape, dtype=dtype, pin_memory=cuda)
    tensor.numpy()[...] = values
    return tensor.to(device, non_blocking=cuda)
