"""Feed-forward part of CO-DINO's layers, which keeps no hidden values.

Shape letters: N tokens, C channels, H hidden channels.
"""

from typing import Any

import torch
from mmcv.cnn.bricks.transformer import FFN
from mmcv.cnn.bricks.wrappers import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...utils.torch_compat import autocast_dtype, is_compiling

# Tokens of a part. The hidden values of a part stay in the processor's cache,
# and their memory is used again for the next part.
PART = 2048


class FeedForward(FFN):
    """Two linear layers with a ReLU between them, and a residual.

    On a CPU the tokens are worked on in parts, and the hidden values, which
    are half of what a step of CO-DINO keeps otherwise, are computed a second
    time in the backward pass. That is a sixth of the arithmetic more, and
    takes no more time: what works on parts stays in the processor's cache.
    Elsewhere, with dropout, under a compiler or an exporter, and where a
    layer was replaced or has hooks, it is mmcv's forward.

    ``dropout``: Probability in [0, 1) behind the ReLU and the second layer.

    Source:
        Arguments, parameters and their names are those of
        ``mmcv.cnn.bricks.transformer.FFN``.
    """

    def __init__(
        self, embed_dims: int, feedforward_channels: int, dropout: float
    ) -> None:
        super().__init__(
            embed_dims=embed_dims,
            feedforward_channels=feedforward_channels,
            ffn_drop=dropout,
            # In place, the gradient of all hidden values is copied twice.
            act_cfg={'type': 'ReLU', 'inplace': False},
        )
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``(..., C)``, residual included."""
        first, second = self.layers[0][0], self.layers[1]
        if not self._works_in_parts(x, first, second):
            return super().forward(x)
        parameters = first.weight, first.bias, second.weight, second.bias
        tokens = x.flatten(0, -2)
        dtype = autocast_dtype('cpu')
        if dtype is not None:
            tokens = tokens.to(dtype)
        return x + _InParts.apply(tokens, *parameters).view(x.shape)

    def _works_in_parts(self, x: Tensor, *layers: nn.Module) -> bool:
        return (
            x.device.type == 'cpu'
            and not (self.training and self.dropout)
            and not is_compiling()
            and not torch.jit.is_tracing()
            and all(
                is_plain(layer) for layer in (*layers, *self.layers[0][1:])
            )
        )


def is_plain(layer: nn.Module) -> bool:
    """Whether calling a layer does nothing but the arithmetic of its class."""
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    # A subclass may do anything.
    return type(layer) in (Linear, nn.Linear, nn.ReLU, nn.Dropout) and not any(
        hooks
    )


def _add_product(total: Tensor, one: Tensor, other: Tensor) -> None:
    """Add a matrix product, in the type of the total."""
    if total.dtype == one.dtype:
        total.addmm_(one, other)
    else:
        total += one @ other


class _InParts(torch.autograd.Function):
    """Both linear layers, by parts of the tokens ``(N, C)``.

    The arithmetic is done in the type of the tokens, gradients of parameters
    are added up in that of the parameters.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor,
        bias: Tensor,
        out_weight: Tensor,
        out_bias: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(tokens, weight, bias, out_weight)
        weight, bias, out_weight, out_bias = (
            parameter.to(tokens.dtype)
            for parameter in (weight, bias, out_weight, out_bias)
        )
        out = torch.empty_like(tokens)
        buffer = tokens.new_empty((min(PART, len(tokens)), len(weight)))
        with torch.autocast('cpu', enabled=False):
            for part, into in zip(tokens.split(PART), out.split(PART)):
                hidden = buffer[: len(part)]
                torch.addmm(bias, part, weight.t(), out=hidden).relu_()
                torch.addmm(out_bias, hidden, out_weight.t(), out=into)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        tokens, *kept = ctx.saved_tensors
        weight, bias, out_weight = (item.to(tokens.dtype) for item in kept)
        grad_tokens = torch.empty_like(tokens)
        grad_weight, grad_bias, grad_out_weight = map(torch.zeros_like, kept)
        parts = (item.split(PART) for item in (tokens, grad, grad_tokens))
        buffers = tokens.new_empty((2, min(PART, len(tokens)), len(weight)))
        with torch.autocast('cpu', enabled=False):
            for part, given, into in zip(*parts):
                hidden, inner = buffers[:, : len(part)]
                torch.addmm(bias, part, weight.t(), out=hidden).relu_()
                _add_product(grad_out_weight, given.t(), hidden)
                torch.mm(given, out_weight, out=inner)
                torch.ops.aten.threshold_backward.grad_input(
                    inner, hidden, 0, grad_input=inner
                )
                _add_product(grad_weight, inner.t(), part)
                grad_bias += inner.sum(0)
                torch.mm(inner, weight, out=into)
        grad_out_bias = grad.sum(0).to(bias.dtype)
        return (
            grad_tokens,
            grad_weight,
            grad_bias,
            grad_out_weight,
            grad_out_bias,
        )
