"""Functions that PyTorch has under another name, or lacks, before 2.13.

mmext works with PyTorch 2.1 and newer. Every difference between these
versions is handled here; other modules import the names below.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten

# PyTorch 2.3 or newer; a compiler replaces the call by True.
is_compiling = (
    getattr(torch.compiler, 'is_compiling', None) or torch._utils.is_compiling
)
# PyTorch 2.7 or newer; before it, torch.export is not told apart.
is_exporting = getattr(torch.compiler, 'is_exporting', lambda: False)


if hasattr(torch, 'get_autocast_dtype'):

    def autocast_dtype(device: str) -> torch.dtype | None:
        """Type of autocast on a kind of device; None where it is off."""
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return None

else:

    def autocast_dtype(device: str) -> torch.dtype | None:
        """Type of autocast on a kind of device; None where it is off."""
        if device == 'cpu':
            is_on = torch.is_autocast_cpu_enabled()
            return torch.get_autocast_cpu_dtype() if is_on else None
        is_on = device == 'cuda' and torch.is_autocast_enabled()
        return torch.get_autocast_gpu_dtype() if is_on else None


_CASTS_MASKS = torch.__version__ >= (2, 4)


def attention_mask(mask: Tensor | None) -> Tensor | None:
    """Return a bool mask for ``nn.MultiheadAttention``, ready for autocast.

    Before PyTorch 2.4, autocast on CPUs does not cast the mask itself.
    """
    if _CASTS_MASKS or mask is None:
        return mask
    dtype = autocast_dtype(mask.device.type)
    if dtype is None:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -torch.inf)


def tree_leaves(value: Any) -> list[Any]:
    """Leaves of nested lists, tuples and dicts."""
    return tree_flatten(value)[0]


class _PlainOperator:
    """Operator for PyTorch 2.1 to 2.3, which have no ``custom_op``.

    Compilers do not know it and break the graph there.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._call = function

    def __call__(self, *inputs: Tensor) -> Any:
        return self._call(*inputs)

    def register_fake(self, fake: Callable) -> Callable:
        """Return ``fake``, which only compilers need."""
        return fake

    def register_autograd(
        self, backward: Callable, *, setup_context: Callable
    ) -> None:
        """Make the operator differentiable."""
        members = {
            'forward': self._call,
            'setup_context': setup_context,
            'backward': backward,
        }
        kind = type(
            'Operator',
            (torch.autograd.Function,),
            {name: staticmethod(member) for name, member in members.items()},
        )
        self._call = kind.apply


def custom_op(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Decorator like ``torch.library.custom_op`` without mutated arguments.

    ``name``: Name of the operator with its namespace, such as
    ``'mmext::deform_attn'``.
    """
    if hasattr(torch.library, 'custom_op'):
        return torch.library.custom_op(name, mutates_args=())
    return _PlainOperator


# Errors of the network, and of any collective. A build of PyTorch may have
# neither.
NetworkError = getattr(dist, 'DistNetworkError', RuntimeError)
CollectiveError = getattr(
    dist, 'DistError', getattr(dist, 'DistBackendError', RuntimeError)
)

_ABSENT = 'mmext: no value'


def has_key(store: 'dist.Store', key: str) -> bool:
    """Whether a store has a key. Does not wait."""
    if hasattr(store, 'check'):
        return store.check([key])
    # This sets nothing. It returns the stored value, or the expected one if
    # the key is missing.
    return store.compare_set(key, _ABSENT, _ABSENT) != _ABSENT.encode()


def uses_libuv() -> bool:
    """Whether a ``TCPStore`` has to use libuv, as torchrun does."""
    default = '1' if hasattr(torch.library, 'custom_op') else '0'
    return os.environ.get('USE_LIBUV', default) == '1'


def has_fused_optimizers(device: torch.device) -> bool:
    """Whether Adam and AdamW can step fused on a device."""
    return device.type == 'cuda' or hasattr(torch.library, 'custom_op')
