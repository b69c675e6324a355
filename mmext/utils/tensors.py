"""Types, devices and sizes of tensors.

Sizes stay variable where a model is traced: ``torch.export`` and
``torch.compile`` trace a size as a ``SymInt``, ``torch.jit.trace`` and the
ONNX exporter that is built on it as a tensor. ``min`` and ``torch.tensor``
would fix either to the size of the example.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .torch_compat import autocast_dtype, is_compiling, is_exporting

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
    if tensor.is_meta or autocast_dtype(kind) is None:
        return nullcontext()
    return torch.autocast(device_type=kind, enabled=False)


@contextmanager
def forgotten() -> Iterator[None]:
    """Context of results that are only compared: without gradients.

    The same weights may be used with gradients after it: what autocast has
    kept of them has none, before PyTorch 2.10.
    """
    with torch.no_grad():
        yield
    if not is_compiling():
        torch.clear_autocast_cache()


def recomputed(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function, and keep only its arguments for the backward pass.

    That calls it again. It must draw no random numbers and change no state.
    """
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,
        **kwargs,
    )


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
    # On the CPU also where another device is the default for new tensors.
    tensor = torch.empty(
        values.shape, dtype=dtype, device='cpu', pin_memory=cuda
    )
    tensor.numpy()[...] = values
    return tensor.to(device, non_blocking=cuda)


def is_traced_for_others() -> bool:
    """Whether a graph is being made that is to run without this package."""
    return torch.jit.is_tracing() or is_exporting()


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
    elif is_compiling():
        parts = [
            torch.full((), number, dtype=torch.int64, device=device)
            for number in numbers
        ]
    else:
        return to_device(np.array(shapes), device)
    return torch.stack(parts).view(-1, 2).to(device)


# Instructions for bfloat16, as Linux calls them: of x86, and of ARM.
_CPU_FLAGS = {'amx_bf16', 'avx512_bf16', 'bf16'}
_CPU_INFO = Path('/proc/cpuinfo')


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device computes in bfloat16, and does not only convert.

    True for GPUs of compute capability 8.0 (Ampere) or newer and for those of
    AMD; for CPUs with AMX, AVX-512 BF16 or the one of ARM, as far as Linux
    says it in ``/proc/cpuinfo``; False for other kinds of devices.
    """
    if device.type == 'cuda':
        properties = torch.cuda.get_device_properties(device)
        return torch.version.hip is not None or properties.major >= 8
    if device.type != 'cpu' or not _CPU_INFO.is_file():
        return False
    return not _CPU_FLAGS.isdisjoint(_CPU_INFO.read_text().split())
