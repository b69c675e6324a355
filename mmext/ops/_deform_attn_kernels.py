"""Kernels of deformable attention for CPUs, compiled by numba.

The arrays are those of :mod:`mmext.ops.ms_deform_attn`, C-contiguous, of one
floating type, but values and their gradient, which are ``(N, M, S, D)``: the
pixels that a head looks at lie next to each other. Rows are those of image x
head, see :mod:`mmext.utils.jit`.

Non-finite locations make a sample NaN, as PyTorch's ``grid_sample`` does.

Two things would halve the speed: an integer times a float32, which numba makes
a float64, and signed indices, each of which it asks whether it is negative.
"""

import numpy as np

from ..utils.jit import FAST, kernel

_INSIDE, _OUTSIDE, _NOT_FINITE = range(3)


@kernel(fastmath=FAST, inline=True)
def _locate(at, height, width):
    """Where a sample is: state, upper left pixel, and how far beyond it."""
    real = at.dtype.type
    x = at[0] * real(width) - real(0.5)
    y = at[1] * real(height) - real(0.5)
    if not (np.isfinite(x) and np.isfinite(y)):
        return _NOT_FINITE, 0, 0, x, y
    if x <= -1 or y <= -1 or x >= width or y >= height:
        return _OUTSIDE, 0, 0, x, y
    left, upper = np.floor(x), np.floor(y)
    return _INSIDE, int(left), int(upper), x - left, y - upper


@kernel(fastmath=FAST, inline=True)
def _add(total, factor, pixel):
    for dim in range(len(total)):
        total[dim] += factor * pixel[dim]


@kernel(inline=True)
def _four(first, width):
    """The four pixels around a sample, of which there is the first."""
    second = first + width
    return (
        np.uintp(first),
        np.uintp(first + 1),
        np.uintp(second),
        np.uintp(second + 1),
    )


@kernel(fastmath=FAST, inline=True)
def _add_four(total, factors, pixels, first, width):
    """The same for the four pixels around a sample, of those of a head."""
    p, q, r, s = _four(first, width)
    a, b, c, d = factors
    for dim in range(len(total)):
        total[dim] += (
            a * pixels[p, dim]
            + b * pixels[q, dim]
            + c * pixels[r, dim]
            + d * pixels[s, dim]
        )


@kernel()
def _on_map(x0, y0, width, height):
    """Which of the four pixels around a sample there are."""
    left, right = x0 >= 0, x0 + 1 < width
    upper, lower = y0 >= 0, y0 + 1 < height
    return upper and left, upper and right, lower and left, lower and right


@kernel(fastmath=FAST)
def _add_some(total, factors, pixels, first, width, there):
    """The same for those that are on the map."""
    for n in range(4):
        if there[n]:
            _add(total, factors[n], pixels[first + n % 2 + n // 2 * width])


@kernel(fastmath=FAST)
def forward(value, shapes, starts, location, weight, out, first, last):
    """Add the samples to ``out``, ``(N, Q, M, D)``, zero at first."""
    _, queries, heads, levels, points, _ = location.shape
    one = weight.dtype.type(1)
    for row in range(first, last):
        image, head = divmod(row, heads)
        pixels = value[image, head]
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
                    factors = (
                        upper * left * scale,
                        upper * right * scale,
                        lower * left * scale,
                        lower * right * scale,
                    )
                    if 0 <= x0 < width - 1 and 0 <= y0 < height - 1:
                        _add_four(total, factors, pixels, pixel, width)
                    else:
                        there = _on_map(x0, y0, width, height)
                        _add_some(total, factors, pixels, pixel, width, there)


@kernel(fastmath=FAST)
def _dot_and_add(given, pixel, factor, grad_pixel):
    """Product of two rows; ``factor`` times the first is added to a third."""
    total = given.dtype.type(0)
    for dim in range(len(given)):
        total += given[dim] * pixel[dim]
        grad_pixel[dim] += factor * given[dim]
    return total


@kernel(fastmath=FAST, inline=True)
def _dots_and_adds(given, pixels, factors, grad_pixels, first, width):
    """The same for the four pixels around a sample, of those of a head."""
    p, q, r, s = _four(first, width)
    a = b = c = d = given.dtype.type(0)
    for dim in range(len(given)):
        a += given[dim] * pixels[p, dim]
        b += given[dim] * pixels[q, dim]
        c += given[dim] * pixels[r, dim]
        d += given[dim] * pixels[s, dim]
    _add(grad_pixels[p], factors[0], given)
    _add(grad_pixels[q], factors[1], given)
    _add(grad_pixels[r], factors[2], given)
    _add(grad_pixels[s], factors[3], given)
    return a, b, c, d


@kernel(fastmath=FAST)
def _some_dots_and_adds(
    given, pixels, factors, grad_pixels, first, width, there
):
    """The same for those that are on the map; 0 for the others."""
    a = b = c = d = given.dtype.type(0)
    second = first + width
    if there[0]:
        at = first
        a = _dot_and_add(given, pixels[at], factors[0], grad_pixels[at])
    if there[1]:
        at = first + 1
        b = _dot_and_add(given, pixels[at], factors[1], grad_pixels[at])
    if there[2]:
        at = second
        c = _dot_and_add(given, pixels[at], factors[2], grad_pixels[at])
    if there[3]:
        at = second + 1
        d = _dot_and_add(given, pixels[at], factors[3], grad_pixels[at])
    return a, b, c, d


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
    one = weight.dtype.type(1)
    for row in range(first, last):
        image, head = divmod(row, heads)
        pixels, grads = value[image, head], grad_value[image, head]
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
                    pixel = start + y0 * width + x0
                    factors = (
                        upper * left * scale,
                        upper * right * scale,
                        lower * left * scale,
                        lower * right * scale,
                    )
                    # Products of the four pixels with what is given.
                    if 0 <= x0 < width - 1 and 0 <= y0 < height - 1:
                        dots = _dots_and_adds(
                            given, pixels, factors, grads, pixel, width
                        )
                    else:
                        there = _on_map(x0, y0, width, height)
                        dots = _some_dots_and_adds(
                            given, pixels, factors, grads, pixel, width, there
                        )
                    upper_left, upper_right, lower_left, lower_right = dots
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
