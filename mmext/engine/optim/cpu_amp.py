"""Mixed precision on a CPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from mmengine.optim import OptimWrapper
from torch import Tensor, nn


class CpuAmpOptimWrapper(OptimWrapper):
    """Train in bfloat16 autocast, on a CPU.

    MMEngine's ``AmpOptimWrapper`` refuses to be built without an
    accelerator. bfloat16 has the range of float32, so there is no scaling of
    the loss. Takes the arguments of MMEngine's ``OptimWrapper``.

    Note:
        On a map that is smaller than the kernel, a convolution has weights
        that meet nothing but padding. In bfloat16 with stride 2, PyTorch 2.13
        returns memory that it did not write as their gradient; the modules of
        the model are given a hook that makes it 0, which it is.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.enabled = True
        """Whether the forward is in bfloat16, and not in float32."""
        self._guarded: WeakSet[nn.Module] = WeakSet()

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Forward pass of a training step, in bfloat16."""
        if self.enabled and model not in self._guarded:
            self._guarded.add(model)
            _guard_convolutions(model)
        with (
            super().optim_context(model),
            torch.autocast('cpu', dtype=torch.bfloat16, enabled=self.enabled),
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


def _guard_convolutions(model: nn.Module) -> None:
    """Give those with a stride a hook against gradients of padding."""
    for module in model.modules():
        if (
            isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
            and max(module.stride) > 1
            and module.padding_mode == 'zeros'
            and not isinstance(module.padding, str)
            and _guard_weights not in module._forward_hooks.values()
        ):
            module.register_forward_hook(_guard_weights, with_kwargs=True)


def _guard_weights(
    module: nn.Conv2d, args: tuple, kwargs: Mapping[str, Any], out: Tensor
) -> None:
    """Forward hook: weights that met only padding get a gradient of 0."""
    node = out.grad_fn
    if out.dtype != torch.bfloat16 or node is None:
        return
    image = args[0] if args else kwargs['input']
    dims = len(module.kernel_size)
    reach = max(k * d for k, d in zip(module.kernel_size, module.dilation))
    reach = max(reach, *module.stride)
    if (
        node.name() != 'ConvolutionBackward0'
        or min(image.shape[-dims:]) > 2 * reach
    ):
        return
    # How often each weight meets the image, as a gradient in float32.
    with torch.autocast('cpu', enabled=False):
        met = getattr(torch.nn.grad, f'conv{dims}d_weight')(
            torch.ones(1, 1, *image.shape[-dims:]),
            (1, 1, *module.kernel_size),
            torch.ones(1, 1, *out.shape[-dims:]),
            module.stride,
            module.padding,
            module.dilation,
        )

    def keep(grads: tuple, _: tuple) -> tuple:
        image, weight, *rest = grads
        if weight is not None:
            weight = weight.where(met.bool(), 0)
        return image, weight, *rest

    node.register_hook(keep)


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
