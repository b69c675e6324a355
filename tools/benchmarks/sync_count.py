"""Find operators that would make the host wait for a GPU.

On a CPU nothing waits, so the operators themselves are looked at: those
whose result, or the shape of it, has to be known to the host.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Read a value, or need the number of results to go on.
_READS = {
    '_local_scalar_dense',
    '_unique',
    '_unique2',
    'argwhere',
    'bincount',
    'equal',
    'is_nonzero',
    'item',
    'masked_select',
    'nonzero',
    'repeat_interleave',
    'unique_consecutive',
    'unique_dim',
}
_INDEXING = {
    '_index_put_impl_',
    '_unsafe_index',
    'index',
    'index_put',
    'index_put_',
}


# Copies to the host, which a tensor on a CPU does without any operator.
_COPIES = (Tensor.cpu, Tensor.tolist)


class _CopyCensus(TorchFunctionMode):
    """Notes the calls of such methods."""

    def __init__(self, ops: list[str]) -> None:
        super().__init__()
        self.ops = ops

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _COPIES:
            self.ops.append(func.__name__)
        return func(*args, **(kwargs or {}))


def _is_mask(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype in (
        torch.bool,
        torch.uint8,
    )


class SyncCensus(TorchDispatchMode):
    """Collects such operators while it is entered.

    Tensors made from Python numbers count, too: they travel to the GPU from
    memory that is not pinned. ``repeat_interleave`` is counted only without
    ``output_size``.

    Attributes:
        ops: Names of the operators found, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []
        self._copies = _CopyCensus(self.ops)

    def __enter__(self) -> 'SyncCensus':
        """Begin to collect."""
        self._copies.__enter__()
        return super().__enter__()

    def __exit__(self, *error) -> None:
        """Stop."""
        super().__exit__(*error)
        self._copies.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operator, and note it if the host would wait for it."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        waits = name in _READS or name == 'lift_fresh'
        if name == 'repeat_interleave':
            waits = kwargs.get('output_size') is None
        if name in _INDEXING:
            indices = args[1] if len(args) > 1 else kwargs.get('indices')
            waits = any(_is_mask(index) for index in indices)
        if waits:
            self.ops.append(name)
        return func(*args, **kwargs)


@contextmanager
def counting_syncs(device: torch.device) -> Iterator[list[str]]:
    """Collect what makes the host wait, while it is entered.

    On CUDA PyTorch itself says so, and the list has file and line of each; on
    a CPU :class:`SyncCensus` looks for what would, and it has the operators.
    The two need not find the same number: a copy to the device counts on CUDA
    only where the host really waits for it.
    """
    names: list[str] = []
    if device.type != 'cuda':
        with SyncCensus() as census:
            yield names
        names += census.ops
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode('warn')
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            yield names
    finally:
        torch.cuda.set_sync_debug_mode(before)
    names += [
        f'{item.filename}:{item.lineno}'
        for item in caught
        if 'synchroniz' in str(item.message)
    ]
