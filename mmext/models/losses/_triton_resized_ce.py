"""Cross-entropy of resized logits on a GPU, in two kernels.

Shape letters: N images, C classes, h and w rows and columns of the logits, H
and W of the labels.
"""

import torch
from torch import Tensor

from ._pixel_targets import (
    LN_2,
    TOO_LARGE,
    PassResult,
    PixelTargets,
    binary_logits,
)
from ._resize_matrix import ResizeAxis
from ._triton_kernels import HAS_TRITON, pixel_kernel, source_kernel

__all__ = ['can_use_triton', 'triton_cross_entropy']

OLDEST_GPU = (7, 0)
"""Compute capability that Triton needs."""
PIXELS = 256
"""Pixels of a row that a program of the first kernel takes."""
SOURCES = 16
"""Rows and columns of sources of a program of the second kernel."""
TILE = (16, 32)
"""Rows and columns of pixels that it takes at a time."""


def can_use_triton(logits: Tensor) -> bool:
    """Whether the kernels can work on these logits.

    Args:
        logits: ``(N, C, h, w)``.

    Examples:
        >>> import torch
        >>> can_use_triton(torch.zeros(1, 2, 4, 4))
        False
    """
    return (
        HAS_TRITON
        and logits.is_cuda
        and logits.dtype != torch.float64
        and torch.cuda.get_device_capability(logits.device) >= OLDEST_GPU
    )


def triton_cross_entropy(
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
        logits: ``(N, C, h, w)``, not float64.
        size: ``(H, W)``.
        align_corners: As in ``F.interpolate``.
        targets: Of all pixels, with dtype float32.
        with_grad: Whether to compute the gradient.
        with_map: Whether to return the loss of each pixel.

    Note:
        Besides the results, makes the small logits anew in float32, and
        three maps of 4 bytes per pixel, four with label smoothing. Does not
        synchronise, and gives the same bits each time.
    """
    source = binary_logits(logits, torch.float32, 1).contiguous()
    axes = [
        ResizeAxis(low, high, align_corners, torch.float32, logits.device)
        for low, high in zip(logits.shape[2:], size)
    ]
    with torch.cuda.device_of(logits):
        maps = _PixelMaps(targets, source)
        result = maps.reduce(source, axes, with_map)
        grad = maps.gradient(source, axes) if with_grad else None
    return PassResult(*result[:2], grad, result[2])


class _PixelMaps:
    """Targets, factors and log-sum-exp of all pixels."""

    def __init__(self, targets: PixelTargets, source: Tensor) -> None:
        shape = targets.label.shape
        self.shape = shape
        self.target = source.new_empty(shape, dtype=torch.int32)
        self.total = source.new_empty(shape)
        self.smooth = targets.label_smoothing > 0
        self.hard = source.new_empty(shape) if self.smooth else self.total
        self.log_sum = source.new_empty(shape)
        share = targets.share()
        self.share = self.total if share is None else share
        # Image by image, as labels are int64 for a moment.
        for n in range(shape[0]):
            terms = targets.terms(n, slice(None))
            self.target[n] = terms.target.masked_fill_(~targets.valid[n], -1)
            self.total[n] = terms.total
            if self.smooth:
                self.hard[n] = terms.hard

    def reduce(
        self, source: Tensor, axes: list[ResizeAxis], with_map: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sum of the losses, number of hits, and the losses if wanted."""
        blocks = -(-self.shape[2] // PIXELS)
        programs = self.shape[0] * self.shape[1] * blocks
        sums = source.new_zeros(programs)
        hits = source.new_zeros(programs, dtype=torch.int64)
        loss = source.new_empty(self.shape) if with_map else sums
        if programs:
            pixel_kernel[(programs,)](
                source,
                *axes[0].taps(),
                *axes[1].taps(),
                self.target,
                self.total,
                self.hard,
                self.share,
                self.log_sum,
                loss,
                sums,
                hits,
                *source.shape[1:],
                *self.shape[1:],
                blocks,
                LN_2=LN_2,
                TOO_LARGE=TOO_LARGE,
                SMOOTH=self.smooth,
                WITH_MAP=with_map,
                PIXELS=PIXELS,
            )
        return sums.sum(), hits.sum(), loss if with_map else None

    def gradient(self, source: Tensor, axes: list[ResizeAxis]) -> Tensor:
        """Gradient of the sum of the losses, shaped as ``source``."""
        grad = torch.empty_like(source)
        tiles = [-(-side // SOURCES) for side in source.shape[2:]]
        programs = source.shape[0] * source.shape[1] * tiles[0] * tiles[1]
        if programs:
            source_kernel[(programs,)](
                source,
                *axes[0].taps(),
                *axes[1].taps(),
                *_readers(axes[0], tiles[0]),
                *_readers(axes[1], tiles[1]),
                self.target,
                self.total,
                self.hard,
                self.share,
                self.log_sum,
                grad,
                *source.shape[1:],
                *self.shape[1:],
                *tiles,
                SMOOTH=self.smooth,
                SOURCES=SOURCES,
                ROWS=TILE[0],
                COLUMNS=TILE[1],
            )
        return grad


def _readers(axis: ResizeAxis, tiles: int) -> tuple[Tensor, Tensor]:
    """First result, and the one behind the last, that read each tile."""
    edge = torch.arange(tiles, device=axis.first.device) * SOURCES
    return (
        torch.searchsorted(axis.second, edge),
        torch.searchsorted(axis.first, edge + SOURCES),
    )
