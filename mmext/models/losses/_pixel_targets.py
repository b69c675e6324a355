"""Labels and factors of the cross-entropy of each pixel.

Per pixel, with ``p`` the softmax of the logits ``z``, the loss is
``total * lse(z) - hard * z[label] - (total - hard) * sum(share * z)`` and its
gradient ``total * p - hard * onehot(label) - (total - hard) * share``. Without
label smoothing, ``total`` equals ``hard``.

Shape letters: N images, C classes, h and w rows and columns of the logits, H
and W of the labels.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    'FLOOR',
    'LN_2',
    'LOG2_E',
    'TOO_LARGE',
    'PassResult',
    'PixelTargets',
    'PixelTerms',
    'binary_logits',
]

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)

FLOOR = -1e30
"""Stands for -inf, which would give NaN when multiplied by a weight of 0."""
TOO_LARGE = 1e20
"""A loss above it comes from FLOOR, so it is inf."""


@dataclass(frozen=True)
class PixelTerms:
    """Factors of the loss of each pixel; see the module's formula.

    Args:
        target: ``(*)`` int64 in [0, C), 0 where the label does not count.
        total: ``(*)``, factor of the log-sum-exp.
        hard: ``(*)``, factor of the label's logit.
    """

    target: Tensor
    total: Tensor
    hard: Tensor


@dataclass(frozen=True)
class PixelTargets:
    """Labels of all pixels and what their losses are multiplied by.

    Args:
        label: ``(N, H, W)``, any integer dtype.
        valid: ``(N, H, W)`` bool. Where it is False, the label and the
            weight may hold anything, and the loss is 0.
        num_classes: ``C``.
        dtype: Of the factors, float32 or float64.
        class_weight: ``(C,)`` or None for ones.
        weight: ``(N, H, W)`` or None for ones.
        label_smoothing: In [0, 1].
    """

    label: Tensor
    valid: Tensor
    num_classes: int
    dtype: torch.dtype
    class_weight: Tensor | None = None
    weight: Tensor | None = None
    label_smoothing: float = 0.0

    def terms(self, image: int, rows: slice) -> PixelTerms:
        """Targets and factors of some rows of an image."""
        valid = self.valid[image, rows]
        target = self.label[image, rows].long().masked_fill(~valid, 0)
        scale = valid.to(self.dtype)
        if self.weight is not None:
            weight = self.weight[image, rows].to(self.dtype)
            scale = weight.masked_fill(~valid, 0)
        hard, weight_sum = scale, self.num_classes
        if self.class_weight is not None:
            of_target = self.class_weight.index_select(0, target.flatten())
            hard = scale * of_target.view_as(target)
            weight_sum = self.class_weight.sum()
        if not self.label_smoothing:
            return PixelTerms(target, hard, hard)
        hard = hard * (1 - self.label_smoothing)
        spread = scale * (self.label_smoothing / self.num_classes * weight_sum)
        return PixelTerms(target, hard + spread, hard)

    def share(self) -> Tensor | None:
        """``(C,)`` part of each class in the smoothing, None without it."""
        if not self.label_smoothing:
            return None
        if self.class_weight is None:
            return torch.full(
                (self.num_classes,),
                1 / self.num_classes,
                dtype=self.dtype,
                device=self.label.device,
            )
        weight_sum = self.class_weight.sum()
        none = weight_sum == 0
        return self.class_weight / weight_sum.masked_fill(none, 1)


@dataclass(frozen=True)
class PassResult:
    """What one pass over the pixels gives.

    Args:
        total: Sum of the losses, 0-dim.
        num_correct: Valid pixels whose largest logit is the label's; of
            equal logits the first class counts. 0-dim int64.
        grad: ``(N, C, h, w)``, gradient of ``total``, or None.
        loss: ``(N, H, W)``, or None.
    """

    total: Tensor
    num_correct: Tensor
    grad: Tensor | None
    loss: Tensor | None


def binary_logits(logits: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
    """Logits for a softmax of powers of two, at most 0.

    A softmax does not see what all classes have in common, whether it is
    taken off before the resize or after it; and ``exp2`` is three times as
    fast as ``exp`` on a CPU.

    Args:
        logits: ``(*, C, *)``, float.
        dtype: Of the result.
        dim: Of the classes.
    """
    logits = logits.to(dtype)
    top = logits.amax(dim, keepdim=True)
    return (logits - top).mul_(LOG2_E).clamp_(min=FLOOR)
