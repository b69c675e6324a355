"""Check that all processes of a run hold the same weights."""

from typing import Any

import torch
from mmengine.dist import all_gather, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from ...registry import HOOKS
from ..distributed import checksum, first_difference, unwrap_model


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
        """Compare the models of all ranks; a difference is an error on all."""
        if get_world_size() == 1:
            return
        model = unwrap_model(model)
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
