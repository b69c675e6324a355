"""Cross-entropy of resized logits, a few rows of labels at a time.

Per pixel, with ``p`` the softmax of the logits ``z``, the loss is
``total * lse(z) - hard * z[label] - (total - hard) * sum(share * z)`` and its
gradient ``total * p - hard * onehot(label) - (total - hard) * share``. Without
label smoothing, ``total`` equals ``hard``.

Shape letters: N images, C classes, h and w rows and columns of the logits, H
and W of the labels; R rows of a strip, K rows of the logits that it reads; Q
sources (low resolution) and P results (high resolution) along an axis.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

FLOOR = -1e30
"""Stands for -inf, which would give NaN when multiplied by a weight of 0."""
TOO_LARGE = 1e20
"""A loss above it comes from FLOOR, so it is inf."""

SLACK = 0.01
"""Torch computes source positions in float32: at 10000 they are off by it."""
STRIP_BYTES = 1 << 20
"""Size of a strip on a CPU: about the L2 cache of a core."""
DEVICE_STRIP_BYTES = 32 << 20
"""The same on other devices, where each step costs a launch."""


@dataclass(frozen=True)
class PixelTerms:
    """Factors of the loss of each pixel; see the module's formula.

    ``target``: ``(*)`` int64 in [0, C), 0 where the label does not count;
    ``total``: ``(*)``, factor of the log-sum-exp; ``hard``: ``(*)``, factor of
    the label's logit.
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

    @property
    def is_plain(self) -> bool:
        """Whether the loss of each valid pixel counts once."""
        return (
            self.class_weight is None
            and self.weight is None
            and not self.label_smoothing
        )

    def terms(self, image: int, rows: slice) -> PixelTerms:
        """Targets and factors of some rows of an image."""
        valid = self.valid[image, rows]
        target = torch.where(valid, self.label[image, rows], 0).long()
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

    ``num_correct``: Valid pixels whose largest logit is the label's; of equal
    logits the first class counts. 0-dim int64; ``grad``: ``(N, C, h, w)``,
    gradient of ``total``, or None; ``loss``: ``(N, H, W)``, or None.
    """

    total: Tensor
    num_correct: Tensor
    grad: Tensor | None
    loss: Tensor | None


def lowered(logits: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
    """Logits less the largest of their classes, finite or NaN.

    A softmax does not see what all classes have in common, whether it is
    taken off before the resize or after it.

    ``logits``: ``(*, C, *)``, float, C being dimension ``dim``.
    """
    logits = logits.to(dtype)
    return (logits - logits.amax(dim, keepdim=True)).clamp_(min=FLOOR)


class ResizeAxis:
    """What ``F.interpolate`` does along one axis, with its rounding.

    ``dtype``: Of the weights, float32 or float64.

    Attributes:
        first: ``(P,)`` int64, the lower of the two sources of each result.
        second: ``(P,)`` int64, the next one, or the last.
        taps: Both sources of each result, ``(2, P)`` int32, and their
            weights; the second one is the first where its weight is 0.
    """

    def __init__(
        self,
        sources: int,
        results: int,
        align_corners: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.sources = sources
        self.shift = 0.0 if align_corners else 0.5
        if not align_corners:
            self.step = sources / results
        else:
            self.step = (sources - 1) / (results - 1) if results > 1 else 0.0
        location = torch.arange(results, dtype=dtype, device=device)
        location = (location + self.shift) * self.step - self.shift
        self.first = location.clamp_(min=0).long().clamp_(max=sources - 1)
        self.second = (self.first + 1).clamp_(max=sources - 1)
        # Two neighbours differ in parity: resized, a comb of the even
        # sources is the weight of whichever of the two is even.
        odd = torch.arange(sources, device=device) % 2
        parity = F.interpolate(
            torch.stack([1 - odd, odd])[None].to(dtype),
            size=results,
            mode='linear',
            align_corners=align_corners,
        )[0]
        taps = torch.stack([self.first, self.second])
        weights = parity.gather(0, taps % 2)
        weights[1].masked_fill_(self.first == self.second, 0)
        taps[1] = torch.where(weights[1] == 0, self.first, self.second)
        self.taps = taps.int(), weights

    def band(self, rows: slice) -> tuple[int, int]:
        """First source that some results read, and the one behind the last."""
        low = (rows.start + self.shift) * self.step - self.shift - SLACK
        high = (rows.stop - 1 + self.shift) * self.step - self.shift + SLACK
        low = min(max(math.floor(low), 0), self.sources - 1)
        return low, min(max(math.floor(high) + 2, low + 1), self.sources)


class StripPass:
    """Losses and gradients of strips, by PyTorch.

    ``logits``: ``(N, C, h, w)``, float; ``size``: ``(H, W)``; ``targets``: Of
    all pixels; float32 or float64 as the work is to be.
    """

    def __init__(
        self,
        logits: Tensor,
        size: tuple[int, int],
        align_corners: bool,
        targets: PixelTargets,
    ) -> None:
        self.logits, self.targets, self.size = logits, targets, size
        self.align_corners, self.share = align_corners, targets.share()
        options = {'dtype': targets.dtype, 'device': logits.device}
        self.rows = ResizeAxis(
            logits.shape[2], size[0], align_corners, **options
        )
        self.rank = torch.arange(logits.shape[1], 0, -1, **options)
        self.rank = self.rank[:, None, None]

    def num_rows(self, in_strip: int) -> int:
        """Rows of a strip, where so many rows ``(C, W)`` may be made."""
        return int(in_strip / max(self.rows.step, 1))

    def strips(self) -> list[slice]:
        """All rows, in pieces."""
        on_cpu = self.logits.device.type == 'cpu'
        limit = STRIP_BYTES if on_cpu else DEVICE_STRIP_BYTES
        row = self.logits.shape[1] * self.size[1] * self.targets.dtype.itemsize
        step = max(self.num_rows(limit // row), 1)
        height = self.size[0]
        return [
            slice(start, min(start + step, height))
            for start in range(0, height, step)
        ]

    def widen(self, source: Tensor) -> Tensor:
        """Resize the columns: ``(C, K, w)`` to ``(C, K, W)``."""
        return F.interpolate(
            source,
            size=self.size[1],
            mode='linear',
            align_corners=self.align_corners,
        )

    def visit(
        self, n: int, rows: slice, grad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Losses ``(R, W)`` of a strip of image ``n``, and number of hits.

        ``grad``: ``(C, h, w)``, added to, or None.
        """
        low, high = self.rows.band(rows)
        terms, valid = self.targets.terms(n, rows), self.targets.valid[n, rows]
        source = lowered(self.logits[n, :, low:high], self.targets.dtype, 0)
        wide = self.widen(source)
        taps, weights = self.rows.taps
        taps = (taps[:, rows] - low).clamp(0, high - low - 1)
        weights = weights[:, rows, None]
        upper, lower = (wide.index_select(1, tap) for tap in taps)
        z = upper.lerp_(lower, weights[1])
        target = terms.target[None]
        z -= z.amax(0)
        # Several times as fast as argmax, which is not vectorised.
        best = (z >= 0).to(z.dtype).mul_(self.rank).amax(0)
        hits = ((best + terms.target == len(z)) & valid).sum()
        label_z = z.gather(0, target)[0]
        spread = mean_z = None
        if self.share is not None:
            spread = terms.total - terms.hard
            mean_z = torch.tensordot(self.share, z, 1)
        power_sum = z.exp_().sum(0)
        log_sum = power_sum.log()
        loss = terms.hard * (log_sum - label_z)
        if self.share is not None:
            loss += spread * (log_sum - mean_z)
        loss.masked_fill_(~valid, 0)
        if grad is not None:
            z *= terms.total / power_sum
            z.scatter_add_(0, target, -terms.hard[None])
            if self.share is not None:
                z -= self.share[:, None, None] * spread
            wide = torch.zeros_like(wide)
            for tap, weight in zip(taps, weights):
                wide.index_add_(1, tap, z * weight)
            grad[:, low:high] += torch.ops.aten.upsample_linear1d_backward(
                wide, [self.size[1]], source.shape, self.align_corners
            )
        return loss, hits


def strip_cross_entropy(
    logits: Tensor,
    size: tuple[int, int],
    align_corners: bool,
    targets: PixelTargets,
    *,
    with_grad: bool,
    with_map: bool = False,
    kind: type[StripPass] = StripPass,
) -> PassResult:
    """Loss, hits and gradient of resized logits, without the resized logits.

    Args:
        logits: ``(N, C, h, w)``, float.
        size: ``(H, W)``.
        align_corners: As in ``F.interpolate``.
        targets: Of all pixels; their dtype is the one of the work.
        with_grad: Whether to compute the gradient.
        with_map: Whether to return the loss of each pixel.
        kind: What works on the strips.

    Note:
        Needs a dozen MiB besides its results. Does not synchronise.
    """
    work = kind(logits, size, align_corners, targets)
    options = {'dtype': targets.dtype, 'device': logits.device}
    grad = torch.zeros(logits.shape, **options) if with_grad else None
    loss = torch.empty(targets.label.shape, **options) if with_map else None
    sums = [torch.zeros((), **options)]
    hits = [torch.zeros((), dtype=torch.int64, device=logits.device)]
    strips = work.strips()
    for n in range(len(logits)):
        for rows in strips:
            part, number = work.visit(n, rows, grad[n] if with_grad else None)
            sums.append(part.sum())
            hits.append(number)
            if with_map:
                loss[n, rows] = part
    total = torch.stack(sums).sum()
    for value in (total, loss):
        if value is not None:
            value.masked_fill_(value > TOO_LARGE, math.inf)
    return PassResult(total, torch.stack(hits).sum(), grad, loss)
