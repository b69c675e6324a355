"""Select the k-th smallest number without sorting."""

import numpy as np
import torch
from torch import Tensor

__all__ = ['host_kth_smallest', 'kth_smallest']

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def kth_smallest(values: Tensor, index: Tensor) -> Tensor:
    """The number that would be at an index if all were sorted.

    Bits of non-negative floating-point numbers, read as an integer, are in
    the order of the numbers. The integer is found from its highest bit to
    its lowest, by counting the numbers below a candidate.

    Args:
        values: At least one, of at least 0, or inf; any shape, float32 or
            float64.
        index: int64 scalar tensor on the same device, in
            ``[0, values.numel())``.

    Returns:
        Scalar of the same dtype, exactly one of the numbers.

    Note:
        One pass over the numbers for each bit but the sign; the host does
        not wait for the device. On a CPU, :func:`host_kth_smallest` is
        several times as fast.

    Examples:
        >>> values = torch.tensor([0.5, 0.25, 1.0])
        >>> kth_smallest(values, torch.tensor(1)).item()
        0.5
    """
    integer = _INTEGERS[values.dtype]
    bits = values.contiguous().view(integer)
    found = torch.zeros((), dtype=integer, device=values.device)
    for bit in reversed(range(torch.iinfo(integer).bits - 1)):
        candidate = found + (1 << bit)
        below = torch.count_nonzero(bits < candidate)
        found = torch.where(below <= index, candidate, found)
    return found.view(values.dtype)


def host_kth_smallest(values: Tensor, index: Tensor) -> Tensor:
    """The number that would be at an index if all were sorted.

    Args:
        values: At least one, on a CPU; any shape, float32 or float64.
        index: int64 scalar tensor in ``[0, values.numel())``.

    Returns:
        Scalar of the same dtype, exactly one of the numbers. NaN counts as
        the largest.

    Note:
        Copies the numbers.

    Examples:
        >>> values = torch.tensor([0.5, 0.25, 1.0])
        >>> host_kth_smallest(values, torch.tensor(1)).item()
        0.5
    """
    rank = int(index)
    parted = np.partition(values.detach().numpy(), rank, axis=None)
    return torch.from_numpy(parted)[rank].clone()
