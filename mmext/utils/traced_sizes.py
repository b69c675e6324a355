"""Arithmetic on sizes that stays variable where a model is traced.

``torch.export`` and ``torch.compile`` trace a size as a ``SymInt``,
``torch.jit.trace`` and the ONNX exporter that is built on it as a tensor.
``min`` and ``torch.tensor`` would fix either to the size of the example.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .precision import to_device

# PyTorch 2.7 is the first that tells.
_is_exporting = getattr(torch.compiler, 'is_exporting', lambda: False)


def is_traced_for_others() -> bool:
    """Whether a graph is being made that is to run without this package."""
    return torch.jit.is_tracing() or _is_exporting()


def smaller(one: int, other: int) -> int:
    """The smaller of two sizes."""
    if torch.jit.is_tracing():
        return torch.minimum(torch.as_tensor(one), torch.as_tensor(other))
    return torch.sym_min(one, other)


def shapes_tensor(
    shapes: Sequence[tuple[int, int]], device: torch.device
) -> Tensor:
    """Heights and widths ``(L, 2)`` as int64."""
    numbers = [number for shape in shapes for number in shape]
    if torch.jit.is_tracing():
        parts = [torch.as_tensor(number) for number in numbers]
    elif torch.compiler.is_compiling():
        parts = [
            torch.full((), number, dtype=torch.int64, device=device)
            for number in numbers
        ]
    else:
        return to_device(np.array(shapes), device)
    return torch.stack(parts).view(-1, 2).to(device)
