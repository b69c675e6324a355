"""Kernels of deformable attention for CPUs, compiled by numba.

The arrays are those of :mod:`mmext.ops.ms_deform_attn`, C-contiguous, of one
floating type. Values, and all that has their last dimension, are padded to a
multiple of :data:`LANES` channels; values and their gradient are ``(N, M, S,
D)``: the pixels that a head looks at lie next to each other. Rows are those
of image x head, see :mod:`mmext.utils.jit`.

Non-finite locations make a sample NaN, as PyTorch's ``grid_sample`` does.

What a kernel does with the numbers of samples are loops without a branch over
rows of one table, which LLVM turns into vectors; with an array for each, it
would have to ask whether they overlap, and does not. Channels are vectors of
LLVM from the start, for sums that stay in registers.
"""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model

from ..utils.jit import FAST, kernel

# Channels of a vector: four registers of AVX2, two of AVX-512.
LANES = 32


class _Vector(types.Type):
    """``LANES`` numbers of a floating type."""

    def __init__(self, dtype: types.Type) -> None:
        super().__init__(f'vector({dtype})')
        self.dtype = dtype


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, of) -> None:
        scalar = manager.lookup(of.dtype).get_value_type()
        super().__init__(manager, of, ir.VectorType(scalar, LANES))


def _at(context, builder, array_type, array, index, vector):
    """Pointer to the vector that begins at an element of a flat array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


@intrinsic
def _load(typing, array, index):
    """The vector that begins at an element of a flat array."""

    def generate(context, builder, signature, args):
        vector = context.get_value_type(signature.return_type)
        pointer = _at(context, builder, array, *args, vector)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return _Vector(array.dtype)(array, types.intp), generate


@intrinsic
def _store(typing, array, index, value):
    """Write a vector from an element of a flat array on."""

    def generate(context, builder, signature, args):
        pointer = _at(context, builder, array, *args[:2], args[2].type)
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def _times_plus(typing, value, factor, total):
    """A vector times a number, and a vector added."""

    def generate(context, builder, signature, args):
        value, factor, total = args
        none = ir.Constant(value.type, ir.Undefined)
        zero = ir.Constant(ir.IntType(32), 0)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
        factor = builder.insert_element(none, factor, zero)
        factor = builder.shuffle_vector(factor, none, lanes)
        product = builder.fmul(value, factor, flags=('contract',))
        return builder.fadd(product, total, flags=('contract',))

    return value(value, value.dtype, value), generate


@intrinsic
def _sum_of_products(typing, value, other):
    """The scalar product of two vectors."""

    def generate(context, builder, signature, args):
        total, count = builder.fmul(*args), LANES
        while count > 1:
            count //= 2
            low, high = (
                builder.shuffle_vector(
                    total,
                    total,
                    ir.Constant(
                        ir.VectorType(ir.IntType(32), count),
                        [ir.IntType(32)(i + first) for i in range(count)],
                    ),
                )
                for first in (0, count)
            )
            total = builder.fadd(low, high)
        return builder.extract_element(total, ir.IntType(32)(0))

    return value.dtype(value, value), generate


@intrinsic
def _zeros(typing, array):
    """The vector of zeros, of the type of an array."""

    def generate(context, builder, signature, args):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return _Vector(array.dtype)(array), generate


# Samples that are looked for at once; a query must not have more of them.
SAMPLES = 320
# So many times, before it is the next head's turn: locations are read in the
# order of memory, and the pixels around these queries are still in the cache.
_TIMES = 16
# Rows of a table of floating-point numbers, and of one of integers.
_X, _Y, _SCALE, _WIDTH, _HEIGHT, _FACTOR, _THERE = 0, 1, 2, 3, 4, 5, 9
_START, _PIXEL = 0, 1


@kernel()
def _tables(shapes, starts, points, like):
    """Tables with the levels of the samples of one query after the other."""
    work = np.zeros((_THERE + 4) * SAMPLES, like.dtype)
    pixels = np.zeros((_PIXEL + 4) * SAMPLES, np.int32)
    for n in range(SAMPLES if len(shapes) else 0):
        level = n // points % len(shapes)
        height, width = shapes[level]
        work[_WIDTH * SAMPLES + n] = width
        work[_HEIGHT * SAMPLES + n] = height
        # A level without pixels may begin behind the last one.
        pixels[_START * SAMPLES + n] = starts[level] if height * width else 0
    return work, pixels


@kernel(fastmath=FAST)
def _find(location, weight, image, head, first, last, work, pixels):
    """Find the pixels around the samples of the queries ``[first, last)``.

    The tables get how far a sample is beyond its upper left pixel, its
    weight, and of its four pixels their numbers, their factors, and 1 for
    one on the map. One that is not has the factor 0, and the number of one
    on the edge.
    """
    _, queries, heads, levels, points, _ = location.shape
    samples = levels * points
    locations, weights = location.reshape(-1), weight.reshape(-1)
    count = 0
    for query in range(first, last):
        at = ((image * queries + query) * heads + head) * samples
        places = locations[2 * at : 2 * (at + samples)]
        scales = weights[at : at + samples]
        for n in range(samples):
            work[_X * SAMPLES + count] = places[2 * n]
            work[_Y * SAMPLES + count] = places[2 * n + 1]
            work[_SCALE * SAMPLES + count] = scales[n]
            count += 1
    real = work.dtype.type
    zero, half, one, most = real(0), real(0.5), real(1), real(np.inf)
    nan = real(np.nan)
    for n in range(count):
        width = work[_WIDTH * SAMPLES + n]
        height = work[_HEIGHT * SAMPLES + n]
        x = work[_X * SAMPLES + n] * width - half
        y = work[_Y * SAMPLES + n] * height - half
        x0, y0 = np.floor(x), np.floor(y)
        x1, y1 = x0 + one, y0 + one
        # Without pixels if it is not finite, and its factors are NaN.
        none = zero if (abs(x) < most) & (abs(y) < most) else nan
        inside = (x > -one) & (y > -one) & (x < width) & (y < height)
        at_left, at_right = inside & (x0 >= zero), inside & (x1 < width)
        above, below = y0 >= zero, y1 < height
        a = one if at_left & above else none
        b = one if at_right & above else none
        c = one if at_left & below else none
        d = one if at_right & below else none
        right, lower = x - x0, y - y0
        work[_X * SAMPLES + n], work[_Y * SAMPLES + n] = right, lower
        scale = work[_SCALE * SAMPLES + n]
        left, upper, lower = one - right, (one - lower) * scale, lower * scale
        work[_THERE * SAMPLES + n] = a
        work[(_THERE + 1) * SAMPLES + n] = b
        work[(_THERE + 2) * SAMPLES + n] = c
        work[(_THERE + 3) * SAMPLES + n] = d
        work[_FACTOR * SAMPLES + n] = a * (left * upper)
        work[(_FACTOR + 1) * SAMPLES + n] = b * (right * upper)
        work[(_FACTOR + 2) * SAMPLES + n] = c * (left * lower)
        work[(_FACTOR + 3) * SAMPLES + n] = d * (right * lower)
        # On the map; written so that NaN becomes a number.
        x0 = x0 if x0 < width else width - one
        x1 = x1 if x1 < width else width - one
        y0 = y0 if y0 < height else height - one
        y1 = y1 if y1 < height else height - one
        x0, x1 = x0 if x0 > zero else zero, x1 if x1 > zero else zero
        y0, y1 = y0 if y0 > zero else zero, y1 if y1 > zero else zero
        # Each step has its type: sums of int32 are int64 in numba.
        line, start = np.int32(width), pixels[_START * SAMPLES + n]
        upper_line = np.int32(np.int32(y0) * line)
        lower_line = np.int32(np.int32(y1) * line)
        first_at = np.int32(start + np.int32(x0))
        second_at = np.int32(start + np.int32(x1))
        pixels[_PIXEL * SAMPLES + n] = upper_line + first_at
        pixels[(_PIXEL + 1) * SAMPLES + n] = upper_line + second_at
        pixels[(_PIXEL + 2) * SAMPLES + n] = lower_line + first_at
        pixels[(_PIXEL + 3) * SAMPLES + n] = lower_line + second_at


@kernel(inline=True)
def _four(table, row, at, count):
    """Parts of four rows of a table."""
    first = row * SAMPLES + at
    second, third = first + SAMPLES, first + 2 * SAMPLES
    fourth = first + 3 * SAMPLES
    return (
        table[first : first + count],
        table[second : second + count],
        table[third : third + count],
        table[fourth : fourth + count],
    )


@kernel(fastmath=FAST)
def _sum(values, dims, at, samples, work, pixels, sums):
    """Sum of the samples of a query, of the pixels of a head."""
    p, q, r, s = _four(pixels, _PIXEL, at, samples)
    a, b, c, d = _four(work, _FACTOR, at, samples)
    one = work.dtype.type(1)
    for lane in range(0, dims, LANES):
        # Two sums: one would wait for itself.
        total = other = _zeros(work)
        for n in range(samples):
            pixel = _load(values, p[n] * dims + lane)
            total = _times_plus(pixel, a[n], total)
            pixel = _load(values, q[n] * dims + lane)
            other = _times_plus(pixel, b[n], other)
            pixel = _load(values, r[n] * dims + lane)
            total = _times_plus(pixel, c[n], total)
            pixel = _load(values, s[n] * dims + lane)
            other = _times_plus(pixel, d[n], other)
        _store(sums, lane, _times_plus(other, one, total))


@kernel()
def forward(value, shapes, starts, location, weight, out, first, last):
    """Fill ``out``, ``(N, Q, M, D)``, with the sums of the samples."""
    _, queries, heads, levels, points, _ = location.shape
    samples, dims = levels * points, value.shape[3]
    at_once = SAMPLES // max(samples, 1)
    work, pixels = _tables(shapes, starts, points, weight)
    for begin in range(0, queries, _TIMES * at_once):
        end = min(begin + _TIMES * at_once, queries)
        for row in range(first, last):
            image, head = divmod(row, heads)
            values = value[image, head].reshape(-1)
            for start in range(begin, end, at_once):
                stop = min(start + at_once, end)
                _find(location, weight, image, head, start, stop, work, pixels)
                for query in range(start, stop):
                    at = (query - start) * samples
                    sums = out[image, query, head]
                    _sum(values, dims, at, samples, work, pixels, sums)


@kernel(fastmath=FAST, inline=True)
def _dot_and_add(given, values, pixel, factor, grads):
    """Product of two rows; ``factor`` times the first is added to a third."""
    total = type(factor)(0)
    for lane in range(0, len(given), LANES):
        row = _load(given, lane)
        total += _sum_of_products(row, _load(values, pixel + lane))
        grad = _load(grads, pixel + lane)
        _store(grads, pixel + lane, _times_plus(row, factor, grad))
    return total


@kernel(fastmath=FAST)
def _spread(values, at, samples, work, pixels, given, grads):
    """Gradients of a head's pixels; products of pixels with what is given.

    The products take the place of what is 1 for a pixel on the map.
    """
    dims = len(given)
    p, q, r, s = _four(pixels, _PIXEL, at, samples)
    a, b, c, d = _four(work, _FACTOR, at, samples)
    e, f, g, h = _four(work, _THERE, at, samples)
    for n in range(samples):
        e[n] *= _dot_and_add(given, values, p[n] * dims, a[n], grads)
        f[n] *= _dot_and_add(given, values, q[n] * dims, b[n], grads)
        g[n] *= _dot_and_add(given, values, r[n] * dims, c[n], grads)
        h[n] *= _dot_and_add(given, values, s[n] * dims, d[n], grads)


@kernel(fastmath=FAST)
def _finish(count, work):
    """Turn weights and places into their gradients, from the products."""
    one = work.dtype.type(1)
    for n in range(count):
        right, lower = work[_X * SAMPLES + n], work[_Y * SAMPLES + n]
        left, upper = one - right, one - lower
        scale = work[_SCALE * SAMPLES + n]
        a = work[_THERE * SAMPLES + n]
        b = work[(_THERE + 1) * SAMPLES + n]
        c = work[(_THERE + 2) * SAMPLES + n]
        d = work[(_THERE + 3) * SAMPLES + n]
        by_x = (upper * (b - a) + lower * (d - c)) * scale
        by_y = (left * (c - a) + right * (d - b)) * scale
        above, below = left * a + right * b, left * c + right * d
        work[_X * SAMPLES + n] = by_x * work[_WIDTH * SAMPLES + n]
        work[_Y * SAMPLES + n] = by_y * work[_HEIGHT * SAMPLES + n]
        work[_SCALE * SAMPLES + n] = upper * above + lower * below


@kernel()
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
    """Fill the gradients, of the shapes of what they are of.

    ``grad_out``: ``(N, Q, M, D)``; ``grad_value``: zero at first.
    """
    _, queries, heads, levels, points, _ = location.shape
    samples = levels * points
    at_once = SAMPLES // max(samples, 1)
    work, pixels = _tables(shapes, starts, points, weight)
    for begin in range(0, queries, _TIMES * at_once):
        end = min(begin + _TIMES * at_once, queries)
        for row in range(first, last):
            image, head = divmod(row, heads)
            values = value[image, head].reshape(-1)
            grads = grad_value[image, head].reshape(-1)
            for start in range(begin, end, at_once):
                stop = min(start + at_once, end)
                _find(location, weight, image, head, start, stop, work, pixels)
                for query in range(start, stop):
                    at = (query - start) * samples
                    given = grad_out[image, query, head]
                    _spread(values, at, samples, work, pixels, given, grads)
                count = (stop - start) * samples
                _finish(count, work)
                for query in range(start, stop):
                    at = (query - start) * samples
                    places = grad_location[image, query, head].reshape(-1)
                    scales = grad_weight[image, query, head].reshape(-1)
                    for n in range(samples):
                        places[2 * n] = work[_X * SAMPLES + at + n]
                        places[2 * n + 1] = work[_Y * SAMPLES + at + n]
                        scales[n] = work[_SCALE * SAMPLES + at + n]
