"""Batch normalisation that keeps no activations while it is frozen."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..registry import MODELS
from ..utils.torch_compat import is_compiling


@MODELS.register_module()
class MemoryEfficientBatchNorm(nn.BatchNorm2d):
    """``BatchNorm2d`` that keeps no input if its parameters are frozen.

    PyTorch keeps the input for the backward pass even in evaluation mode and
    with a frozen weight and bias. This layer keeps nothing in that case: a
    convolution, a norm and a ReLU then keep one map instead of two. In every
    other case it works as PyTorch's. For backbones with frozen
    norms, ``norm_eval=True`` and ``norm_cfg=dict(
    type='mmext.MemoryEfficientBatchNorm', requires_grad=False)``.

    Args:
        num_features: ``C``.
        eps: Added to the variance.
        momentum: Of the running statistics, None for their mean.
        affine: With weight and bias.
        track_running_stats: With running statistics.

    Shape:
        ``(N, C, H, W)`` to the same; of any floating type.

    Source:
        Arguments, arithmetic and state dict are those of
        ``torch.nn.BatchNorm2d``.

    Example:
        >>> import torch
        >>> norm = MemoryEfficientBatchNorm(2).eval().requires_grad_(False)
        >>> norm(torch.ones(1, 2, 1, 1, requires_grad=True)).shape
        torch.Size([1, 2, 1, 1])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise maps ``(N, C, H, W)``."""
        if (
            self.training
            or self.running_mean is None
            or any(item.requires_grad for item in self.parameters())
            or not (input.requires_grad and torch.is_grad_enabled())
            or is_compiling()
            or torch.jit.is_tracing()
        ):
            return super().forward(input)
        self._check_input_dim(input)
        return _Normalise.apply(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.eps,
        )


class _Normalise(torch.autograd.Function):
    """Normalisation whose one gradient is a normalisation, too."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        mean: Tensor,
        var: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(var, weight)
        ctx.eps = eps
        return F.batch_norm(input, mean, var, weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        var, weight = ctx.saved_tensors
        mean = torch.zeros_like(var)
        out = _Normalise.apply(grad, mean, var, weight, None, ctx.eps)
        return out, None, None, None, None, None
