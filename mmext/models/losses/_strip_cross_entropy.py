"""Cross-entropy of resized logits, a few rows at a time.

Shape letters: N images, C classes, h and w rows and columns of the logits, H
and W of the labels, R rows of a strip, K source rows of a band.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ._pixel_targets import (
    LN_2,
    TOO_LARGE,
    PassResult,
    PixelTargets,
    binary_logits,
)
from ._resize_matrix import PRODUCT_DEVICES, Piece, ResizeAxis

__all__ = ['ResizePlan', 'StripPass', 'strip_cross_entropy']

STRIP_BYTES = 1 << 20
"""Size of a strip on a CPU: about the L2 cache of a core."""
DEVICE_STRIP_BYTES = 32 << 20
"""The same on other devices, where each step costs a launch."""
BAND_FACTOR = 4
"""A band of rows that are resized along W is so many strips large."""
ROW_SOURCES, COLUMN_SOURCES = 8, 32
"""Sources resized by one matrix; most of a larger one would be zeros."""


class ResizePlan:
    """How the resize of one image is cut into bands and strips.

    Args:
        source: ``(h, w)``.
        size: ``(H, W)``.
        align_corners: As in ``F.interpolate``.
        channels: Channels that are resized together.
        dtype: float32 or float64.
        device: Of the logits.
    """

    def __init__(
        self,
        source: tuple[int, int],
        size: tuple[int, int],
        align_corners: bool,
        channels: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        rows, columns = (
            ResizeAxis(a, b, align_corners, dtype, device)
            for a, b in zip(source, size)
        )
        self.width = size[1]
        self.columns = columns.pieces(
            math.ceil(COLUMN_SOURCES * size[1] / source[1])
        )
        row_bytes = channels * size[1] * dtype.itemsize
        if device.type in PRODUCT_DEVICES:
            limit, most = STRIP_BYTES, ROW_SOURCES * size[0] // source[0]
        else:
            limit, most = DEVICE_STRIP_BYTES, size[0]
        self.strips = rows.pieces(min(limit // row_bytes, most))
        self.band_rows = max(BAND_FACTOR * limit // row_bytes, 1)

    def bands(self) -> Iterator[tuple[int, int, list[Piece]]]:
        """Source rows (first, behind the last) with the strips they serve."""
        group: list[Piece] = []
        for strip in self.strips:
            if group and strip.high - group[0].low > self.band_rows:
                yield group[0].low, group[-1].high, group
                group = []
            group.append(strip)
        yield group[0].low, group[-1].high, group

    def widen(self, image: Tensor) -> Tensor:
        """Resize the columns: ``(K, C, w)`` to ``(K, C, W)``."""
        out = image.new_empty(*image.shape[:2], self.width)
        flat, wide = image.flatten(0, 1), out.flatten(0, 1)
        for piece in self.columns:
            piece.resize(
                flat[:, piece.low : piece.high],
                1,
                wide[:, piece.start : piece.stop],
            )
        return out

    def add_narrowed(self, grad: Tensor, out: Tensor) -> None:
        """Gradient of :meth:`widen`, added to ``out`` ``(K, C, w)``."""
        flat, narrow = grad.flatten(0, 1), out.flatten(0, 1)
        for piece in self.columns:
            piece.add_transposed(
                flat[:, piece.start : piece.stop],
                1,
                narrow[:, piece.low : piece.high],
            )


class StripPass:
    """Walk over the strips of all images, collecting sums and gradients.

    Args:
        logits: ``(N, C, h, w)``, float.
        size: ``(H, W)``.
        align_corners: As in ``F.interpolate``.
        targets: Of all pixels; float32 or float64 as the work is to be.
    """

    def __init__(
        self,
        logits: Tensor,
        size: tuple[int, int],
        align_corners: bool,
        targets: PixelTargets,
    ) -> None:
        self.logits, self.targets = logits, targets
        self.share = targets.share()
        self.classes = logits.shape[1]
        channels = self.classes + (self.share is not None)
        self.plan = ResizePlan(
            tuple(logits.shape[2:]),
            size,
            align_corners,
            channels,
            targets.dtype,
            logits.device,
        )
        rank = torch.arange(self.classes, 0, -1, device=logits.device)
        self.rank = rank.to(targets.dtype)[:, None]
        self.sums = [torch.zeros((), dtype=targets.dtype, device=rank.device)]
        self.hits = [torch.zeros((), dtype=torch.int64, device=rank.device)]

    def run(self, grad: Tensor | None, loss: Tensor | None) -> None:
        """Visit all strips once.

        Args:
            grad: ``(N, C, h, w)``, overwritten, or None.
            loss: ``(N, H, W)``, overwritten, or None.
        """
        for n in range(len(self.logits)):
            self.visit_image(
                n,
                None if grad is None else grad[n],
                None if loss is None else loss[n],
            )

    def visit_image(
        self, n: int, grad: Tensor | None, loss: Tensor | None
    ) -> None:
        """Visit the strips of an image, band by band."""
        image = self.low_resolution(n)
        image_grad = None if grad is None else torch.zeros_like(image)
        for low, high, strips in self.plan.bands():
            wide = self.plan.widen(image[low:high])
            wide_grad = None if grad is None else torch.zeros_like(wide)
            for strip in strips:
                pixel = self.visit(n, strip, low, wide, wide_grad)
                if loss is not None:
                    loss[strip.start : strip.stop] = pixel
            if grad is not None:
                self.plan.add_narrowed(wide_grad, image_grad[low:high])
        if grad is not None:
            self.write_gradient(image_grad, grad)

    def low_resolution(self, n: int) -> Tensor:
        """Image ``n`` as ``(h, C, w)``, see :func:`binary_logits`.

        A further channel holds the mean that label smoothing needs.
        """
        image = binary_logits(self.logits[n], self.targets.dtype, 0)
        if self.share is not None:
            mean = torch.tensordot(self.share, image, 1)
            image = torch.cat([image, mean[None]])
        return image.transpose(0, 1).contiguous()

    def visit(
        self,
        n: int,
        strip: Piece,
        low: int,
        wide: Tensor,
        wide_grad: Tensor | None,
    ) -> Tensor:
        """Losses of a strip; its gradient is added to ``wide_grad``."""
        rows = slice(strip.start, strip.stop)
        band = slice(strip.low - low, strip.high - low)
        terms, valid = self.targets.terms(n, rows), self.targets.valid[n, rows]
        every = wide.new_empty(strip.stop - strip.start, *wide.shape[1:])
        strip.resize(wide[band].flatten(1), 0, every.flatten(1))
        z, target = every[:, : self.classes], terms.target[:, None]
        label_z = z.gather(1, target)
        top = z.amax(1, keepdim=True)
        hit = self.is_first(z, top, terms.target)
        self.hits.append((hit & valid).sum())
        z.sub_(top).exp2_()
        power_sum = z.sum(1, keepdim=True)
        log_sum = power_sum.log2()
        label_z -= top
        loss = terms.hard * (log_sum - label_z)[:, 0]
        if self.share is not None:
            mean_z = every[:, self.classes] - top[:, 0]
            spread = terms.total - terms.hard
            loss += spread * (log_sum[:, 0] - mean_z)
            every[:, self.classes] = -spread
        loss.masked_fill_(loss > TOO_LARGE, math.inf).mul_(LN_2)
        loss.masked_fill_(~valid, 0)
        self.sums.append(loss.sum())
        if wide_grad is not None:
            factor = terms.total[:, None] / power_sum
            z.mul_(factor)
            label_grad = label_z.exp2_().mul_(factor) - terms.hard[:, None]
            z.scatter_(1, target, label_grad)
            strip.add_transposed(
                every.flatten(1), 0, wide_grad[band].flatten(1)
            )
        return loss

    def is_first(self, z: Tensor, top: Tensor, target: Tensor) -> Tensor:
        """Where the target is the first class of the largest logit.

        Several times as fast as ``argmax``, which is not vectorised.
        """
        mark = torch.empty_like(z)
        torch.ge(z, top, out=mark)
        return mark.mul_(self.rank).amax(1) + target == self.classes

    def write_gradient(self, image_grad: Tensor, out: Tensor) -> None:
        """Put ``(h, C, w)`` into ``out`` ``(C, h, w)``."""
        by_class = image_grad.transpose(0, 1)
        out.copy_(by_class[: self.classes])
        if self.share is not None:
            out.addcmul_(self.share[:, None, None], by_class[self.classes])


def strip_cross_entropy(
    logits: Tensor,
    size: tuple[int, int],
    align_corners: bool,
    targets: PixelTargets,
    *,
    with_grad: bool,
    with_map: bool = False,
) -> PassResult:
    """Loss, hits and gradient of resized logits, without the resized logits.

    Args:
        logits: ``(N, C, h, w)``, float.
        size: ``(H, W)``.
        align_corners: As in ``F.interpolate``.
        targets: Of all pixels; their dtype is the one of the work.
        with_grad: Whether to compute the gradient.
        with_map: Whether to return the loss of each pixel.

    Note:
        Needs a dozen MiB and the logits of one image, twice with gradient,
        besides its results. Does not synchronise.
    """
    work = StripPass(logits, size, align_corners, targets)
    grad = loss = None
    if with_grad:
        grad = torch.empty(
            logits.shape, dtype=targets.dtype, device=logits.device
        )
    if with_map:
        loss = torch.empty(
            targets.label.shape, dtype=targets.dtype, device=logits.device
        )
    work.run(grad, loss)
    total = torch.stack(work.sums).sum()
    return PassResult(total, torch.stack(work.hits).sum(), grad, loss)
