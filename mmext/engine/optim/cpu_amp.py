"""Mixed precision on a CPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from torch import nn

__all__ = [
    'CPU_VERSIONS',
    'CpuAmpOptimWrapper',
    'cpu_amp_cfg',
]


class CpuAmpOptimWrapper(OptimWrapper):
    """Train in bfloat16 autocast, on a CPU.

    MMEngine's ``AmpOptimWrapper`` refuses to be built without an
    accelerator. bfloat16 has the range of float32, so there is no scaling of
    the loss. Takes the arguments of MMEngine's ``OptimWrapper``.

    Note:
        PyTorch 2.13 returns NaN gradients for the weights of a bfloat16
        convolution with stride 2 on maps of one pixel. Models with such a
        map need larger images (CO-DINO: 128 pixels).
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Forward pass of a training step, in bfloat16."""
        with (
            super().optim_context(model),
            torch.autocast('cpu', dtype=torch.bfloat16),
        ):
            yield

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer, also of a training with a scaled loss."""
        super().load_state_dict(
            {
                key: value
                for key, value in state_dict.items()
                if key != 'loss_scaler'
            }
        )


# By the name of a class, in any scope, the one that does the same on a CPU.
CPU_VERSIONS: dict[str, type[OptimWrapper]] = {
    'AmpOptimWrapper': CpuAmpOptimWrapper
}


def cpu_amp_cfg(cfg: Mapping[str, Any]) -> dict[str, Any] | None:
    """The CPU's copy of a config for mixed precision, None for others."""
    kind = cfg.get('type')
    name = getattr(kind, '__name__', None) or str(kind).rpartition('.')[2]
    if name not in CPU_VERSIONS:
        return None
    dtype = cfg.get('dtype')
    if dtype not in (None, 'bfloat16', torch.bfloat16):
        raise ValueError(
            "optim_wrapper.dtype must be 'bfloat16' on a CPU, got "
            f'{dtype!r}; leave it out, or train on a GPU'
        )
    result = {
        key: value
        for key, value in cfg.items()
        if key not in ('loss_scale', 'dtype', 'use_fsdp')
    }
    result['type'] = CPU_VERSIONS[name]
    return result
