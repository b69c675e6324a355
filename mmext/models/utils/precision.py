"""Float32 islands inside an autocast region."""

from typing import Any

import torch
from torch import Tensor

__all__ = ['float32_region', 'to_float32']


def float32_region(tensor: Tensor) -> torch.autocast:
    """Context in which autocast is off for the device of ``tensor``.

    Box areas, IoU, matching costs and sampling locations overflow or lose
    pixels in half precision: a box area above 65504 px is inf in float16, and
    bfloat16 places a point of a 320 px wide map only to 0.6 px.

    Args:
        tensor: Any tensor of the device in question.

    Examples:
        >>> import torch
        >>> x = torch.ones(2, 2)
        >>> with torch.autocast('cpu', torch.bfloat16), float32_region(x):
        ...     (x @ x).dtype
        torch.float32
    """
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def to_float32(value: Any) -> Any:
    """Cast every floating tensor in nested lists, tuples and dicts.

    Args:
        value: A tensor, or lists, tuples and dicts that hold tensors. float64
            is left alone, other objects are returned unchanged.

    Returns:
        The same structure with half-precision tensors in float32.

    Examples:
        >>> import torch
        >>> to_float32((torch.ones(1).half(), 3))
        (tensor([1.]), 3)
    """
    if isinstance(value, Tensor):
        half = value.dtype in (torch.float16, torch.bfloat16)
        return value.float() if half else value
    if isinstance(value, list | tuple):
        return type(value)(to_float32(item) for item in value)
    if isinstance(value, dict):
        return {key: to_float32(item) for key, item in value.items()}
    return value
