"""Triton kernels: cross-entropy of resized logits, one pixel per thread.

The first kernel finds the log-sum-exp of each pixel. The second gathers, for
a block of sources, the gradients of all pixels that read it, so that nothing
is added up by atomics and results do not change from run to run.

Sources are pixels of the small logits, results those of the labels. The maps
hold one value per result; the factors ``total`` and ``hard`` are explained
in ``_pixel_targets``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

__all__ = ['HAS_TRITON', 'pixel_kernel', 'source_kernel']

HAS_TRITON = find_spec('triton') is not None
"""Without it, the kernels below are functions that can not be called."""

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
    place = first + own_row[:, None] * low_width + own_column[None, :]
    in_source = (own_row < low_height)[:, None] & (own_column < low_width)
    tl.store(grad + place, collected, in_source)
