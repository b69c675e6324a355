"""Batch normalisation that is not trained, and keeps no activations."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..registry import MODELS

__all__ = ['FrozenBatchNorm']


@MODELS.register_module()
class FrozenBatchNorm(nn.BatchNorm2d):
    """``BatchNorm2d`` in evaluation mode, which stays in it.

    PyTorch's keeps its input for the backward pass even if neither its
    statistics nor its weight and bias are trained. This one keeps nothing
    then, so that of a convolution, a norm and a ReLU one map is kept instead
    of two. For backbones: ``norm_cfg=dict(type='mmext.FrozenBatchNorm',
    requires_grad=False)``.

    Weight and bias may require gradients (``requires_grad=True``, the default
    of ``norm_cfg``). Then the input is kept, as their gradients need it.

    Args:
        num_features: ``C``.
        eps: Added to the variance.
        momentum: Without effect, as the statistics are never updated; taken
            for configs that give it.

    Shape:
        ``(N, C, H, W)`` to the same; of any floating type.

    Source:
        The arithmetic, the state dict and the optimizer's parameters are
        those of ``torch.nn.BatchNorm2d`` in evaluation mode.

    Example:
        >>> import torch
        >>> norm = FrozenBatchNorm(2).requires_grad_(False)
        >>> norm.train().training
        False
        >>> norm(torch.ones(1, 2, 1, 1, requires_grad=True)).shape
        torch.Size([1, 2, 1, 1])
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__(num_features, eps=eps, momentum=momentum)
        self.eval()

    def train(self, mode: bool = True) -> 'FrozenBatchNorm':
        """Stay in evaluation mode, whatever is asked for."""
        return super().train(False)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise by the statistics that were loaded."""
        if (
            self.weight.requires_grad
            or self.bias.requires_grad
            or not (input.requires_grad and torch.is_grad_enabled())
            or torch.compiler.is_compiling()
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
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(var, weight)
        ctx.eps = eps
        return F.batch_norm(input, mean, var, weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        var, weight = ctx.saved_tensors
        zero = torch.zeros_like(var)
        out = _Normalise.apply(grad, zero, var, weight, zero, ctx.eps)
        return out, None, None, None, None, None
