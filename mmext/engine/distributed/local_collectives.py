"""Run a forward with collectives in one process of many, alone.

When a step is run again to explain why it failed, one process may have begun
a reduction that another one never will. A forward that averages a number over
all processes would wait for ever. Here every process is taken to have the
same values as this one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d


@contextmanager
def local_collectives() -> Iterator[None]:
    """Answer the collectives of ``torch.distributed`` without others.

    Applies to calls as ``torch.distributed.all_reduce(...)``, which is what
    MMEngine, its libraries and SyncBatchNorm do.
    """
    saved = [
        (module, name, getattr(module, name))
        for module in (dist, c10d)
        for name in _LOCAL
        if hasattr(module, name)
    ]
    try:
        for module, name, _ in saved:
            setattr(module, name, _LOCAL[name])
        yield
    finally:
        for module, name, function in saved:
            setattr(module, name, function)


class _Done:
    """A work handle of something that is finished."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _handle(async_op: bool) -> _Done | None:
    return _Done() if async_op else None


def _all_reduce(
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> _Done | None:
    if op == dist.ReduceOp.SUM:
        tensor.mul_(dist.get_world_size(group))
    return _handle(async_op)


def _all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
) -> _Done | None:
    for target in tensor_list:
        target.copy_(tensor)
    return _handle(async_op)


def _all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
) -> _Done | None:
    parts = output_tensor.view(dist.get_world_size(group), -1)
    parts.copy_(input_tensor.reshape(1, -1).expand_as(parts))
    return _handle(async_op)


def _reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> _Done | None:
    size = dist.get_world_size(group)
    part = input.reshape(size, -1)[dist.get_rank(group)].view_as(output)
    output.copy_(part)
    if op == dist.ReduceOp.SUM:
        output.mul_(size)
    return _handle(async_op)


def _all_gather_object(
    object_list: list, obj: Any, group: Any = None, **kwargs: Any
) -> None:
    object_list[:] = [obj] * len(object_list)


def _keep(*args: Any, async_op: bool = False, **kwargs: Any) -> _Done | None:
    """A collective that leaves the values of a process as they are."""
    return _handle(async_op)


def _refuse(name: str) -> Callable:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f'torch.distributed.{name} needs another process')

    return refuse


# These take turns with particular processes; there is no answer to give.
_IMPOSSIBLE = ('send', 'recv', 'isend', 'irecv', 'batch_isend_irecv')
_LOCAL = {
    'all_reduce': _all_reduce,
    'all_gather': _all_gather,
    'all_gather_into_tensor': _all_gather_into_tensor,
    'all_gather_object': _all_gather_object,
    'reduce_scatter_tensor': _reduce_scatter_tensor,
    **dict.fromkeys(
        ('barrier', 'broadcast', 'broadcast_object_list', 'reduce'), _keep
    ),
    **{name: _refuse(name) for name in _IMPOSSIBLE},
}
