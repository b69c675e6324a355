"""Kernels of deformable attention for CPUs, compiled by numba.

The arrays are those of :mod:`mmext.ops.ms_deform_attn`, C-contiguous, of one
floating type, but values and their gradient, which are ``(N, M, S, D)``: the
pixels that a head looks at lie next to each other. Rows are those of image x
head, see :mod:`mmext.ops._jit`.

Non-finite locations make a sample NaN, as PyTorch's ``grid_sample`` does.
"""

import numpy as np

from ._jit import FAST, kernel

__all__ = ['backward', 'forward']

_INSIDE, _OUTSIDE, _NOT_FINITE = range(3)


@kernel(fastmath=FAST)
def _locate(at, height, width):
    """Where a sample is: state, upper left pixel, and how far beyond it."""
    half = at.dtype.type(0.5)
    x = at[0] * width - half
    y = at[1] * height - half
    if not (np.isfinite(x) and np.isfinite(y)):
        return _NOT_FINITE, 0, 0, x, y
    if x <= -1 or y <= -1 or x >= width or y >= height:
        return _OUTSIDE, 0, 0, x, y
    x0, y0 = int(np.floor(x)), int(np.floor(y))
    return _INSIDE, x0, y0, x - x0, y - y0


@kernel(fastmath=FAST)
def _add(total, factor, pixel):
    for dim in range(len(total)):
        total[dim] += factor * pixel[dim]


@kernel(fastmath=FAST)
def forward(value, shapes, starts, location, weight, out, first, last):
    """Add the samples to ``out``, ``(N, Q, M, D)``, zero at first."""
    _, queries, heads, levels, points, _ = location.shape
    one = weight.dtype.type(1)
    for row in range(first, last):
        image, head = divmod(row, heads)
        for query in range(queries):
            total = out[image, query, head]
            for level in range(levels):
                height, width = shapes[level]
                start = starts[level]
                for point in range(points):
                    at = location[image, query, head, level, point]
                    scale = weight[image, query, head, level, point]
                    state, x0, y0, right, lower = _locate(at, height, width)
                    if state == _NOT_FINITE:
                        total[:] = np.nan
                    if state != _INSIDE:
                        continue
                    left, upper = one - right, one - lower
                    pixel = start + y0 * width + x0
                    if y0 >= 0:
                        if x0 >= 0:
                            _add(
                                total,
                                upper * left * scale,
                                value[image, head, pixel],
                            )
                        if x0 + 1 < width:
                            factor = upper * right * scale
                            _add(total, factor, value[image, head, pixel + 1])
                    if y0 + 1 < height:
                        pixel += width
                        if x0 >= 0:
                            _add(
                                total,
                                lower * left * scale,
                                value[image, head, pixel],
                            )
                        if x0 + 1 < width:
                            factor = lower * right * scale
                            _add(total, factor, value[image, head, pixel + 1])


@kernel(fastmath=FAST)
def _dot_and_add(given, pixel, factor, grad_pixel):
    """Product of two rows; ``factor`` times the first is added to a third."""
    total = given.dtype.type(0)
    for dim in range(len(given)):
        total += given[dim] * pixel[dim]
        grad_pixel[dim] += factor * given[dim]
    return total


@kernel(fastmath=FAST)
def backward(
    value,
    shapes,
    starts,
    location,
    weight,
    grad_out,
    grad_value,
    grad_location,
    grad_weight,
    first,
    last,
):
    """Fill the gradients, of the shapes of what they are of, zero at first.

    ``grad_out``: ``(N, Q, M, D)``.
    """
    _, queries, heads, levels, points, _ = location.shape
    zero, one = weight.dtype.type(0), weight.dtype.type(1)
    for row in range(first, last):
        image, head = divmod(row, heads)
        for query in range(queries):
            given = grad_out[image, query, head]
            for level in range(levels):
                height, width = shapes[level]
                start = starts[level]
                for point in range(points):
                    at = location[image, query, head, level, point]
                    scale = weight[image, query, head, level, point]
                    into = grad_location[image, query, head, level, point]
                    state, x0, y0, right, lower = _locate(at, height, width)
                    if state == _NOT_FINITE:
                        into[:] = np.nan
                        grad_weight[image, query, head, level, point] = np.nan
                    if state != _INSIDE:
                        continue
                    left, upper = one - right, one - lower
                    # Products of the four pixels with what is given.
                    upper_left = upper_right = lower_left = lower_right = zero
                    pixel = start + y0 * width + x0
                    if y0 >= 0:
                        if x0 >= 0:
                            upper_left = _dot_and_add(
                                given,
                                value[image, head, pixel],
                                upper * left * scale,
                                grad_value[image, head, pixel],
                            )
                        if x0 + 1 < width:
                            upper_right = _dot_and_add(
                                given,
                                value[image, head, pixel + 1],
                                upper * right * scale,
                                grad_value[image, head, pixel + 1],
                            )
                    if y0 + 1 < height:
                        pixel += width
                        if x0 >= 0:
                            lower_left = _dot_and_add(
                                given,
                                value[image, head, pixel],
                                lower * left * scale,
                                grad_value[image, head, pixel],
                            )
                        if x0 + 1 < width:
                            lower_right = _dot_and_add(
                                given,
                                value[image, head, pixel + 1],
                                lower * right * scale,
                                grad_value[image, head, pixel + 1],
                            )
                    grad_weight[image, query, head, level, point] = upper * (
                        left * upper_left + right * upper_right
                    ) + lower * (left * lower_left + right * lower_right)
                    into[0] = (
                        upper * (upper_right - upper_left)
                        + lower * (lower_right - lower_left)
                    ) * (scale * width)
                    into[1] = (
                        left * (lower_left - upper_left)
                        + right * (lower_right - upper_right)
                    ) * (scale * height)
