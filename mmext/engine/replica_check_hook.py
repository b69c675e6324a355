"""Check that all processes of a run hold the same weights."""

from typing import Any

import torch
from mmengine.dist import all_gather, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from ..registry import HOOKS

__all__ = ['ReplicaCheckHook', 'checksum', 'first_difference']

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUM_WEIGHTS = 65521  # the largest prime below 2 ** 16


def checksum(tensor: Tensor) -> Tensor:
    """A number that tells tensors apart that differ in any bit.

    The bits, read as integers, are added up with weights that depend on the
    position, modulo 2 ** 64. Equal bits give equal sums on every device and
    in every order of addition. NaN equals the same NaN.

    Args:
        tensor: Any shape and dtype.

    Returns:
        A scalar int64 tensor on the same device.

    Examples:
        >>> a = torch.tensor([1.0, 2.0])
        >>> bool(checksum(a) == checksum(a.clone()))
        True
        >>> bool(checksum(a) == checksum(a.flip(0)))
        False
    """
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    bits = flat.contiguous().view(_INTEGERS[flat.element_size()])
    weights = torch.arange(bits.numel(), device=bits.device)
    weights = weights.remainder_(_NUM_WEIGHTS).add_(1)
    return (bits.to(torch.int64) * weights).sum()


def first_difference(sums: list[Tensor]) -> tuple[int, int] | None:
    """First entry that is not the same everywhere.

    Args:
        sums: One tensor of shape ``(N,)`` per rank.

    Returns:
        Index of the entry and the first rank that differs from rank 0; None
        if all are equal.

    Examples:
        >>> first_difference([torch.tensor([1, 2]), torch.tensor([1, 3])])
        (1, 1)
    """
    table = torch.stack(sums)
    wrong = (table != table[:1]).t().nonzero()
    return tuple(wrong[0].tolist()) if len(wrong) else None


@HOOKS.register_module()
class ReplicaCheckHook(Hook):
    """Raise when the replicas of the model differ between processes.

    They are checked before the first step and after every ``interval``
    steps. Does nothing in a run of one process.

    Args:
        interval: Steps between checks.
        check_buffers: Check buffers, too. The statistics of batch norm that
            is trained without synchronisation differ by nature; set False
            with such a model.

    Raises:
        ValueError: If ``interval`` is not positive.

    Note:
        A check reads all weights once, synchronises the device, and gathers
        eight bytes per tensor from each rank.
    """

    priority = 'LOW'

    def __init__(
        self, interval: int = 100, check_buffers: bool = True
    ) -> None:
        if interval < 1:
            raise ValueError(f'interval must be positive, got {interval}')
        self.interval = interval
        self.check_buffers = check_buffers

    def before_train(self, runner: Runner) -> None:
        """Check what the training starts from."""
        self.check(runner.model, runner.iter)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """Check after every ``interval`` steps."""
        if self.every_n_train_iters(runner, self.interval):
            self.check(runner.model, runner.iter + 1)

    def check(self, model: nn.Module, iteration: int) -> None:
        """Compare the model with those of the other processes.

        Args:
            model: The model, wrapped or not.
            iteration: For the message.

        Raises:
            RuntimeError: If they differ, on every process. The message names
                the first parameter or buffer that does.
        """
        if get_world_size() == 1:
            return
        if is_model_wrapper(model):
            model = model.module
        tensors = dict(model.named_parameters())
        if self.check_buffers:
            tensors |= dict(model.named_buffers())
        sums = torch.stack([checksum(value) for value in tensors.values()])
        difference = first_difference(all_gather(sums))
        if difference is not None:
            index, rank = difference
            name = list(tensors)[index]
            kind = (
                'parameter'
                if name in dict(model.named_parameters())
                else 'buffer'
            )
            raise RuntimeError(
                f'the model must be the same on all processes, but after '
                f'iteration {iteration} {kind} {name!r} of rank {rank} '
                'differs from that of rank 0; '
                + (
                    'look for a parameter that is changed outside of the '
                    'optimizer, or per rank'
                    if kind == 'parameter'
                    else 'use SyncBN, or check_buffers=False if it may differ'
                )
            )
