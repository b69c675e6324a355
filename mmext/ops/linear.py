"""Linear layers on CPUs, by the faster of PyTorch's two matrix products.

PyTorch multiplies float32 with MKL, whose fast kernels are for processors of
Intel, and convolves with oneDNN. On processors of AMD that have AVX-512,
oneDNN takes 0.6 to 0.9 of MKL's time for products as large as CO-DINO's, and
is as exact; ``tools/benchmarks/ops.py --ops linear`` measures both with their
gradients.

Shape letters: N rows, K features that go in, M features that come out.
"""

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .choice import backend_of

# N * K * M from which on oneDNN is the faster; below, MKL is, by little.
LEAST = 2**27


def is_plain(layer: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    """Whether calling a layer does nothing but the arithmetic of its class.

    Args:
        layer: Without hooks, if the answer is to be True.
        kinds: Classes that it may be of; subclasses are something else.
    """
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    return type(layer) in kinds and not any(hooks)


def linear_product(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``rows @ weight.T + bias``, outside autograd.

    Args:
        rows: ``(N, K)``; large products of float32 and, where the processor
            has arithmetic for it, of bfloat16 may be oneDNN's.
        weight: ``(M, K)``, of the same type, also a transposed view.
        bias: ``(M,)``, of the same type, or None for zeros.
        out: ``(N, M)``, contiguous: is written and returned.

    Returns:
        ``(N, M)``.
    """
    if not _has_onednn(rows, weight):
        if out is None:
            return F.linear(rows, weight, bias)
        if bias is None:
            return torch.mm(rows, weight.t(), out=out)
        return torch.addmm(bias, rows, weight.t(), out=out)
    # Its ReLU makes zeros of NaN, so that none is asked of it.
    result = torch.ops.mkldnn._linear_pointwise(
        rows, weight, bias, 'none', [], ''
    )
    return result if out is None else out.copy_(result)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T + bias``, by oneDNN where that is the faster.

    Args:
        x: ``(..., K)``.
        weight: ``(M, K)``.
        bias: ``(M,)``, or None for zeros.

    Returns:
        ``(..., M)``, what ``torch.nn.functional.linear`` gives but for
        rounding, with gradients of any order. Under autocast, a compiler or
        an exporter, that function is called.
    """
    if (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or not _has_onednn(x, weight)
        or torch.is_autocast_enabled('cpu')
    ):
        return F.linear(x, weight, bias)
    out = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias)
    return out.view(*x.shape[:-1], -1)


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Call a layer; an ``nn.Linear`` without hooks by :func:`linear`.

    Args:
        layer: ``nn.Linear``, or what was put in its place.
        x: ``(..., K)``.

    Returns:
        ``(..., M)``.
    """
    if is_plain(layer, (nn.Linear,)):
        return linear(x, layer.weight, layer.bias)
    return layer(x)


def _has_onednn(rows: Tensor, weight: Tensor) -> bool:
    """Whether the product of the two is oneDNN's."""
    if rows.device.type != 'cpu' or rows.numel() * len(weight) < LEAST:
        return False
    if rows.dtype != weight.dtype:
        return False
    if rows.dtype == torch.bfloat16:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
    elif rows.dtype != torch.float32:
        return False
    return backend_of('linear', 'cpu') == 'onednn'


class _Linear(torch.autograd.Function):
    """:func:`linear_product` with gradients, of any order."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return linear_product(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            _Linear.apply(grad, weight.t(), None) if wants[0] else None,
            # Long and thin: MKL's is as fast.
            grad.t() @ rows if wants[1] else None,
            grad.sum(0) if wants[2] else None,
        )
