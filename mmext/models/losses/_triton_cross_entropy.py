"""Cross-entropy of resized logits on a GPU, in two Triton kernels.

The first kernel finds the log-sum-exp of each pixel, one per thread. The
second gathers, for a block of sources, the gradients of all pixels that read
it, so that nothing is added up by atomics and results do not change from run
to run.

Sources are pixels of the small logits, results those of the labels. The maps
hold one value per result; the factors ``total`` and ``hard`` are explained
in ``_resized_cross_entropy``.

Shape letters: N images, C classes, h and w rows and columns of the logits, H
and W of the labels.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ._resized_cross_entropy import (
    TOO_LARGE,
    PassResult,
    PixelTargets,
    ResizeAxis,
    lowered,
)

LN_2 = math.log(2)

HAS_TRITON = find_spec('triton') is not None and torch.__version__ >= (2, 4)
"""Whether there is Triton 3, which PyTorch 2.4 is the first to bring.

Else the kernels below are functions that cannot be called.
"""
OLDEST_GPU = (7, 0)
"""Compute capability that Triton needs."""
PIXELS = 256
"""Pixels of a row that a program of the first kernel takes."""
SOURCES = 16
"""Rows and columns of sources of a program of the second kernel."""
TILE = (16, 16)
"""Rows and columns of pixels that it takes at a time.

On an H200 these, in one warp, need 0.55 to 0.62 of the time of (16, 32) in
four; that was measured with three stages, as Triton has them by default.
"""
# More stages, which load tiles ahead, need more than the 255 registers of a
# thread; the compiler may aim at 128, and spill the others.
OPTIONS = {'num_warps': 1, 'num_stages': 1}
if torch.version.hip is None:
    OPTIONS['maxnreg'] = 255

if HAS_TRITON:
    import triton
    from triton import language as tl

    jit = triton.jit
else:

    def jit(function: Any) -> Any:
        """Leave a kernel that can not be compiled as it is."""
        return function


@jit
def _taps(sources, weights, results, at, inside):
    """Both sources of some results, and their weights."""
    return (
        tl.load(sources + at, inside, 0),
        tl.load(sources + results + at, inside, 0),
        tl.load(weights + at, inside, 0.0),
        tl.load(weights + results + at, inside, 0.0),
    )


@jit
def _resized(
    plane, upper, lower, upper_w, lower_w, left, right, left_w, right_w
):
    """Logits of pixels; ``upper`` and ``lower`` are offsets of lines."""
    above = tl.load(plane + upper + left) * left_w
    above += tl.load(plane + upper + right) * right_w
    below = tl.load(plane + lower + left) * left_w
    below += tl.load(plane + lower + right) * right_w
    return above * upper_w + below * lower_w


@jit
def _resized_tile(
    plane, upper, lower, upper_w, lower_w, left, right, left_w, right_w
):
    """The same for all pairs of a line and a column."""
    return _resized(
        plane,
        upper[:, None],
        lower[:, None],
        upper_w[:, None],
        lower_w[:, None],
        left[None, :],
        right[None, :],
        left_w[None, :],
        right_w[None, :],
    )


@jit
def _matrix(own, first, second, first_weight, second_weight):
    """Weight of each pixel (second dim) in each of our sources (first)."""
    own = own[:, None]
    weight = tl.where(own == first[None, :], first_weight[None, :], 0.0)
    return weight + tl.where(
        own == second[None, :], second_weight[None, :], 0.0
    )


@jit
def pixel_kernel(
    source,
    row_sources,
    row_weights,
    column_sources,
    column_weights,
    target_map,
    total_map,
    hard_map,
    share,
    log_sum_map,
    loss_map,
    sums,
    hits,
    classes,
    low_height,
    low_width,
    height,
    width,
    blocks,
    LN_2: tl.constexpr,
    TOO_LARGE: tl.constexpr,
    SMOOTH: tl.constexpr,
    WITH_MAP: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Log-sum-exp and loss of some pixels of a row."""
    program = tl.program_id(0).to(tl.int64)
    x = (program % blocks) * PIXELS + tl.arange(0, PIXELS)
    line = program // blocks
    inside = x < width
    pixel = line * width + x
    left, right, left_w, right_w = _taps(
        column_sources, column_weights, width, x, inside
    )
    upper, lower, upper_w, lower_w = _taps(
        row_sources, row_weights, height, line % height, True
    )
    upper, lower = upper * low_width, lower * low_width
    target = tl.load(target_map + pixel, inside, -1)
    plane = source + (line // height) * classes * low_height * low_width
    top = tl.full((PIXELS,), float('-inf'), tl.float32)
    power_sum = tl.zeros((PIXELS,), tl.float32)
    label_z = tl.zeros((PIXELS,), tl.float32)
    mean_z = tl.zeros((PIXELS,), tl.float32)
    best = tl.zeros((PIXELS,), tl.int32)
    for c in range(classes):
        z = _resized(
            plane, upper, lower, upper_w, lower_w, left, right, left_w, right_w
        )
        more = z > top
        power = tl.exp2(-tl.abs(z - top))
        power_sum = tl.where(more, power_sum * power + 1, power_sum + power)
        top = tl.where(more, z, top)
        best = tl.where(more, c, best)
        label_z = tl.where(target == c, z, label_z)
        if SMOOTH:
            mean_z += z * tl.load(share + c)
        plane += low_height * low_width
    log_power = tl.log2(power_sum)
    loss = top - label_z + log_power
    total = tl.load(total_map + pixel, inside, 0.0)
    if SMOOTH:
        hard = tl.load(hard_map + pixel, inside, 0.0)
        loss = loss * hard + (top - mean_z + log_power) * (total - hard)
    else:
        loss = loss * total
    loss = tl.where(loss > TOO_LARGE, float('inf'), loss * LN_2)
    loss = tl.where(target >= 0, loss, 0.0)
    # The softmax of a pixel without label is 0, whatever its logits.
    log_sum = tl.where(target >= 0, top + log_power, float('inf'))
    tl.store(log_sum_map + pixel, log_sum, inside)
    if WITH_MAP:
        tl.store(loss_map + pixel, loss, inside)
    tl.store(sums + program, tl.sum(loss, 0))
    hit = inside & (best == target)
    tl.store(hits + program, tl.sum(hit.to(tl.int32), 0).to(tl.int64))


@jit
def _logit_gradient(
    z,
    log_sum_map,
    target_map,
    total_map,
    hard_map,
    share,
    pixel,
    inside,
    c,
    SMOOTH: tl.constexpr,
):
    """Gradient of the loss of some pixels by their logit of class ``c``."""
    log_sum = tl.load(log_sum_map + pixel, inside, float('inf'))
    total = tl.load(total_map + pixel, inside, 0.0)
    target = tl.load(target_map + pixel, inside, -1)
    value = tl.exp2(z - log_sum) * total
    if SMOOTH:
        hard = tl.load(hard_map + pixel, inside, 0.0)
        value -= (total - hard) * tl.load(share + c)
    else:
        hard = total
    return value - tl.where(target == c, hard, 0.0)


@jit
def source_kernel(
    source,
    row_sources,
    row_weights,
    column_sources,
    column_weights,
    row_start,
    row_stop,
    column_start,
    column_stop,
    target_map,
    total_map,
    hard_map,
    share,
    log_sum_map,
    grad,
    classes,
    low_height,
    low_width,
    height,
    width,
    row_tiles,
    column_tiles,
    SMOOTH: tl.constexpr,
    SOURCES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradient of a block of sources of one class."""
    # Classes change first, so that programs side by side share the maps.
    program = tl.program_id(0).to(tl.int64)
    c = program % classes
    column_tile = program // classes % column_tiles
    row_tile = program // (classes * column_tiles) % row_tiles
    n = program // (classes * column_tiles * row_tiles)
    own_row = row_tile * SOURCES + tl.arange(0, SOURCES)
    own_column = column_tile * SOURCES + tl.arange(0, SOURCES)
    first = (n * classes + c) * low_height * low_width
    plane = source + first
    x_start = tl.load(column_start + column_tile)
    x_stop = tl.load(column_stop + column_tile)
    y_stop = tl.load(row_stop + row_tile)
    collected = tl.zeros((SOURCES, SOURCES), tl.float32)
    for y_tile in range(tl.load(row_start + row_tile), y_stop, ROWS):
        y = y_tile + tl.arange(0, ROWS)
        up, low, up_w, low_w = _taps(
            row_sources, row_weights, height, y, y < y_stop
        )
        to_row = _matrix(own_row, up, low, up_w, low_w)
        up, low = up * low_width, low * low_width
        for x_tile in range(x_start, x_stop, COLUMNS):
            x = x_tile + tl.arange(0, COLUMNS)
            left, right, left_w, right_w = _taps(
                column_sources, column_weights, width, x, x < x_stop
            )
            to_column = _matrix(own_column, left, right, left_w, right_w)
            z = _resized_tile(
                plane, up, low, up_w, low_w, left, right, left_w, right_w
            )
            value = _logit_gradient(
                z,
                log_sum_map,
                target_map,
                total_map,
                hard_map,
                share,
                (n * height + y)[:, None] * width + x[None, :],
                (y < y_stop)[:, None] & (x < x_stop)[None, :],
                c,
                SMOOTH,
            )
            row_sum = tl.dot(to_row, value, input_precision='ieee')
            collected += tl.dot(
                row_sum, tl.trans(to_column), input_precision='ieee'
            )
    location = first + own_row[:, None] * low_width + own_column[None, :]
    in_source = (own_row < low_height)[:, None] & (own_column < low_width)
    tl.store(grad + location, collected, in_source)


def can_use_triton(logits: Tensor) -> bool:
    """Whether the kernels can work on these logits.

    ``logits``: ``(N, C, h, w)``.
    """
    return (
        HAS_TRITON
        and logits.device.type == 'cuda'
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
    # For powers of two.
    source = lowered(logits, torch.float32, 1).div_(LN_2).contiguous()
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
                *axes[0].taps,
                *axes[1].taps,
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
                *axes[0].taps,
                *axes[1].taps,
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
                **OPTIONS,
            )
        return grad


def _readers(axis: ResizeAxis, tiles: int) -> tuple[Tensor, Tensor]:
    """First result, and the one behind the last, that read each tile."""
    edge = torch.arange(tiles, device=axis.first.device) * SOURCES
    return (
        torch.searchsorted(axis.second, edge),
        torch.searchsorted(axis.first, edge + SOURCES),
    )
