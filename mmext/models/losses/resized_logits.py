"""Logits that stand for their bilinear resize, and losses of them.

A segmentation head resizes ``(N, C, h, w)`` to the ``(N, C, H, W)`` of the
labels before the cross-entropy, which then holds three tensors of that size.
Here nothing of that size is ever made.

Shape letters: N images, C classes, h and w rows and columns of the logits, H
and W of the labels.
"""

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...utils.tensors import float32_region, wide_type
from ...utils.torch_compat import is_compiling
from ._resized_cross_entropy import (
    PassResult,
    PixelTargets,
    StripPass,
    strip_cross_entropy,
)
from ._triton_cross_entropy import can_use_triton, triton_cross_entropy
from .reduction import check_smoothing


class ResizedLogits:
    """Logits ``(N, C, h, w)`` that stand for their resize to ``(H, W)``.

    The losses are those of ``F.cross_entropy`` on
    ``F.interpolate(logits, size, mode='bilinear')``. They work on a few rows
    at a time; the gradient is the one of the small logits from the start.

    Args:
        logits: ``(N, C, h, w)``, float, h and w at least 1. The losses work
            in float32, for float64 logits in float64.
        size: ``(H, W)``, in pixels, at least 1.
        align_corners: As in ``F.interpolate``.

    Attributes:
        num_correct: Of the last loss computed: how many valid pixels have
            their label's logit as the largest; the first class counts among
            equal ones, as in ``argmax``. 0-dim int64 on the device, or None
            before the first loss.

    Raises:
        TypeError: If the logits are not a floating point tensor.
        ValueError: If the logits do not have four dimensions, are of size 0
            in C, h or w, or if ``size`` is not two positive integers.

    Note:
        A loss with gradient needs, besides the gradient, about a dozen MiB.
        It does not synchronise. On a CPU it is computed by a kernel that
        numba compiles, where numba is installed and the environment variable
        ``MMEXT_OPS`` is not ``pytorch``, except for float64.

    Source:
        Written for mmext. Gives the numbers of
        ``torch.nn.functional.interpolate`` and ``cross_entropy``.

    Examples:
        >>> import torch
        >>> logits = torch.zeros(1, 4, 2, 2, requires_grad=True)
        >>> resized = ResizedLogits(logits, (8, 8))
        >>> resized.shape
        torch.Size([1, 4, 8, 8])
        >>> label = torch.zeros(1, 8, 8, dtype=torch.uint8)
        >>> loss = resized.cross_entropy_sum(label, label == 0)
        >>> loss / 64
        tensor(1.3863, grad_fn=<DivBackward0>)
        >>> resized.num_correct
        tensor(64)
    """

    def __init__(
        self,
        logits: Tensor,
        size: tuple[int, int],
        align_corners: bool = False,
    ) -> None:
        if not logits.is_floating_point():
            raise TypeError(
                f'logits must have a floating point dtype, got {logits.dtype}'
            )
        if logits.dim() != 4 or 0 in logits.shape[1:]:
            raise ValueError(
                'logits must have the shape (N, C, h, w) with C, h and w at '
                f'least 1, got {tuple(logits.shape)}'
            )
        size = tuple(int(side) for side in size)
        if len(size) != 2 or min(size) < 1:
            raise ValueError(
                f'size must be (H, W), both at least 1, got {size}'
            )
        self.logits = logits
        self.size = size
        self.align_corners = align_corners
        self.num_correct: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """``(N, C, H, W)``."""
        return torch.Size((*self.logits.shape[:2], *self.size))

    @property
    def num_classes(self) -> int:
        """``C``."""
        return self.logits.shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the logits."""
        return self.logits.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the logits and of their gradient."""
        return self.logits.dtype

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(logits={tuple(self.logits.shape)}, '
            f'size={self.size}, align_corners={self.align_corners})'
        )

    def dense(self) -> Tensor:
        """The resized logits themselves, ``(N, C, H, W)``, differentiable."""
        return F.interpolate(
            self.logits,
            size=self.size,
            mode='bilinear',
            align_corners=self.align_corners,
        )

    def cross_entropy_sum(
        self,
        label: Tensor,
        valid: Tensor,
        *,
        class_weight: Tensor | None = None,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Sum of the cross-entropy over the valid pixels.

        Args:
            label: ``(N, H, W)``, any integer dtype, in [0, C) where valid.
            valid: ``(N, H, W)`` bool. Where it is False, ``label`` and
                ``weight`` may hold anything.
            class_weight: ``(C,)``, as in ``F.cross_entropy``. Gets no
                gradient.
            weight: ``(N, H, W)``, multiplies the loss of each pixel. Gets no
                gradient.
            label_smoothing: In [0, 1], as in ``F.cross_entropy``.

        Returns:
            0-dim, float32 or for float64 logits float64; not divided by
            anything. Without a valid pixel 0, with gradient 0.

        Raises:
            TypeError: If ``label`` is not an integer tensor, or ``valid``
                not a bool one.
            ValueError: If C is 1, a shape or a device does not fit, a
                weight requires a gradient or ``label_smoothing`` is outside
                [0, 1].

        Note:
            The gradient is computed together with the loss and scaled in
            the backward pass, which raises RuntimeError with
            ``create_graph=True``.
        """
        self._check(label, valid, class_weight, weight)
        check_smoothing(label_smoothing)
        if class_weight is not None:
            class_weight = class_weight.to(wide_type(self.logits))
        targets = self._targets(
            label, valid, class_weight, weight, float(label_smoothing)
        )
        with_grad = torch.is_grad_enabled() and self.logits.requires_grad
        total, self.num_correct = _CrossEntropySum.apply(
            self.logits, self._resize, targets, with_grad
        )
        return total

    def nll(self, label: Tensor, valid: Tensor) -> Tensor:
        """Negative log-likelihood of the label of each pixel.

        Args:
            label: ``(N, H, W)``, any integer dtype, in [0, C) where valid.
            valid: ``(N, H, W)`` bool. Where it is False, ``label`` may hold
                anything.

        Returns:
            ``(N, H, W)``, float32 or for float64 logits float64; 0 where not
            valid.

        Raises:
            TypeError: If ``label`` is not an integer tensor, or ``valid``
                not a bool one.
            ValueError: If C is 1, or a shape or a device does not fit.

        Note:
            The backward pass computes the softmax again, and raises
            RuntimeError with ``create_graph=True``.
        """
        self._check(label, valid)
        loss, self.num_correct = _PixelLoss.apply(
            self.logits, self._resize, self._targets(label, valid)
        )
        return loss

    @property
    def _resize(self) -> '_Resize':
        return _Resize(self.size, self.align_corners)

    def _targets(
        self, label: Tensor, valid: Tensor, *terms: Any
    ) -> PixelTargets:
        return PixelTargets(
            label, valid, self.num_classes, wide_type(self.logits), *terms
        )

    def _check(
        self,
        label: Tensor,
        valid: Tensor,
        class_weight: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> None:
        if self.num_classes == 1:
            raise ValueError(
                'logits must have at least 2 classes, got 1: the softmax of '
                'one class is 1 whatever its logit; use a sigmoid loss'
            )
        is_integer = not (label.is_floating_point() or label.is_complex())
        if not is_integer or label.dtype == torch.bool:
            raise TypeError(
                f'label must have an integer dtype, got {label.dtype}'
            )
        if valid.dtype != torch.bool:
            raise TypeError(f'valid must be bool, got {valid.dtype}')
        pixels = (len(self.logits), *self.size)
        for name, tensor, shape in (
            ('label', label, pixels),
            ('valid', valid, pixels),
            ('class_weight', class_weight, (self.num_classes,)),
            ('weight', weight, pixels),
        ):
            if tensor is None:
                continue
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f'{name} must have the shape {shape}, '
                    f'got {tuple(tensor.shape)}'
                )
            if tensor.device != self.device:
                raise ValueError(
                    f'{name} must be on {self.device} as the logits, '
                    f'got {tensor.device}'
                )
            if tensor.requires_grad:
                raise ValueError(
                    f'{name} must not require a gradient, it would get none; '
                    'multiply the result of nll() for that'
                )


@cache
def kernel_pass() -> type[StripPass] | None:
    """Class that computes strips with numba; None if it is not installed."""
    try:
        from ._numba_cross_entropy import KernelPass
    except ImportError:
        return None
    return KernelPass


def engine_for(logits: Tensor) -> Callable[..., PassResult]:
    """The fastest implementation for these logits ``(N, C, h, w)``."""
    if can_use_triton(logits):
        return triton_cross_entropy
    if (
        logits.device.type == 'cpu'
        and logits.dtype != torch.float64
        and os.environ.get('MMEXT_OPS') != 'pytorch'
        and not is_compiling()
    ):
        kind = kernel_pass()
        if kind is not None:
            return partial(strip_cross_entropy, kind=kind)
    return strip_cross_entropy


class _Resize(NamedTuple):
    """What the functions below keep of the resized logits."""

    size: tuple[int, int]
    align_corners: bool

    def run(
        self, logits: Tensor, targets: PixelTargets, **wanted: bool
    ) -> PassResult:
        """Go over all pixels, with a kernel where there is one."""
        engine = engine_for(logits)
        with float32_region(logits):
            return engine(logits.detach(), *self, targets, **wanted)


def _refuse_second_derivative() -> None:
    """Raise in a backward pass that is recorded."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            'create_graph must be False, got True: the gradient of '
            'ResizedLogits cannot be differentiated; take the loss of dense()'
        )


class _CrossEntropySum(torch.autograd.Function):
    """Sum of the losses; the gradient is computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        resize: _Resize,
        targets: PixelTargets,
        with_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        result = resize.run(logits, targets, with_grad=with_grad)
        ctx.mark_non_differentiable(result.num_correct)
        ctx.dtype = logits.dtype
        if with_grad:
            ctx.save_for_backward(result.grad)
        return result.total, result.num_correct

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, _: Any) -> tuple:
        _refuse_second_derivative()
        (grad,) = ctx.saved_tensors
        return (grad * grad_output).to(ctx.dtype), None, None, None


class _PixelLoss(torch.autograd.Function):
    """Loss of each pixel; the backward pass goes over the strips again."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        resize: _Resize,
        targets: PixelTargets,
    ) -> tuple[Tensor, Tensor]:
        result = resize.run(logits, targets, with_grad=False, with_map=True)
        ctx.mark_non_differentiable(result.num_correct)
        ctx.save_for_backward(logits, targets.label, targets.valid)
        ctx.resize, ctx.work_dtype = resize, targets.dtype
        return result.loss, result.num_correct

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, _: Any) -> tuple:
        _refuse_second_derivative()
        logits, label, valid = ctx.saved_tensors
        targets = PixelTargets(
            label, valid, logits.shape[1], ctx.work_dtype, weight=grad_output
        )
        result = ctx.resize.run(logits, targets, with_grad=True)
        return result.grad.to(logits.dtype), None, None
