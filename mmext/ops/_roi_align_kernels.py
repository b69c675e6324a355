"""Kernels of RoIAlign's mean for CPUs, compiled by numba.

A row is an image and a block of its channels, see :mod:`mmext.utils.jit`: the
pixels that its regions read are brought into a small table, channels last,
which stays in the cache while all regions add up its rows.

Shape letters: N images, C channels, H W map size, R regions, P Q bins along y
and x, K pixels that a bin reads along one axis.
"""

import numpy as np

from ..utils.jit import FAST, kernel

# Of a block.
CHANNELS = 64


@kernel()
def find_taps(start, width, count, size, pixels, weights, lengths):
    """Find the pixels of every bin along one axis, each once.

    In the order of operations of the compiled kernels: what is on the border
    decides by its last bit.

    Args:
        start: ``(R,)``, where the regions begin, in map pixels.
        width: ``(R,)``, of their bins, the type of ``start``.
        count: ``(R,)``, int64, samples of a bin.
        size: Of the map.
        pixels: Filled; ``(R, P, K)``, int64.
        weights: Filled; ``(R, P, K)``, the type of ``start``.
        lengths: Filled with the numbers of pixels; ``(R, P)``, int64.
    """
    zero, one = start.dtype.type(0), start.dtype.type(1)
    half = start.dtype.type(0.5)
    for region in range(len(start)):
        samples = start.dtype.type(count[region])
        for bin_ in range(lengths.shape[1]):
            length = 0
            index, weight = pixels[region, bin_], weights[region, bin_]
            begin = start[region] + start.dtype.type(bin_) * width[region]
            for sample in range(count[region]):
                step = start.dtype.type(sample) + half
                position = begin + step * width[region] / samples
                if not (-one <= position <= size):
                    continue
                position = min(max(position, zero), start.dtype.type(size - 1))
                low = int(np.floor(position))
                far = position - start.dtype.type(low)
                for pixel, part in (
                    (low, (one - far) / samples),
                    (min(low + 1, size - 1), far / samples),
                ):
                    if part == zero:
                        continue
                    # Samples ascend: it is one of the last two, or new.
                    known = length - 1
                    while known >= 0 and index[known] > pixel:
                        known -= 1
                    if known < 0 or index[known] != pixel:
                        known = length
                        length += 1
                        index[known], weight[known] = pixel, zero
                    weight[known] += part
            lengths[region, bin_] = length


@kernel()
def mark(image, y, y_length, x, x_length, used):
    """Mark the pixels between the first and the last that regions read.

    ``image``: ``(R,)``, int64; ``y``, ``x`` and their lengths: of
    :func:`find_taps`; ``used``: changed; ``(N, H, W)``, bool.
    """
    for region in range(len(image)):
        top, left = used.shape[1:]
        bottom, right = -1, -1
        for bin_ in range(y.shape[1]):
            length = y_length[region, bin_]
            if length:
                top = min(top, y[region, bin_, 0])
                bottom = max(bottom, y[region, bin_, length - 1])
        for bin_ in range(x.shape[1]):
            length = x_length[region, bin_]
            if length:
                left = min(left, x[region, bin_, 0])
                right = max(right, x[region, bin_, length - 1])
        for row in range(top, bottom + 1):
            used[image[region], row, left : right + 1] = True


@kernel(fastmath=FAST, inline=True)
def _add(total, factor, row):
    for channel in range(len(total)):
        total[channel] += factor * row[channel]


@kernel(fastmath=FAST)
def _pool(
    region, row_of, y, y_weight, y_length, x, x_weight, x_length, table, out
):
    """Add up one region's bins, ``(P * Q, channels)``."""
    bins = x.shape[1]
    for row in range(y.shape[1]):
        for col in range(bins):
            total = out[row * bins + col]
            for i in range(y_length[region, row]):
                rows = row_of[y[region, row, i]]
                scale = y_weight[region, row, i]
                for j in range(x_length[region, col]):
                    factor = scale * x_weight[region, col, j]
                    _add(total, factor, table[rows[x[region, col, j]]])


@kernel(fastmath=FAST)
def _unpool(
    region, row_of, y, y_weight, y_length, x, x_weight, x_length, table, out
):
    """Add one region's bins to the table: the transpose of :func:`_pool`."""
    bins = x.shape[1]
    for row in range(y.shape[1]):
        for col in range(bins):
            given = out[row * bins + col]
            for i in range(y_length[region, row]):
                rows = row_of[y[region, row, i]]
                scale = y_weight[region, row, i]
                for j in range(x_length[region, col]):
                    factor = scale * x_weight[region, col, j]
                    _add(table[rows[x[region, col, j]]], factor, given)


@kernel(fastmath=FAST)
def average(
    maps,
    regions,
    starts,
    pixels,
    rows,
    row_of,
    y,
    y_weight,
    y_length,
    x,
    x_weight,
    x_length,
    out,
    first,
    last,
):
    """Fill the pooled regions.

    ``maps``: ``(N, C, H, W)``; ``regions``: ``(R,)``, those of each image
    together, and ``starts``, ``(N + 1,)``, where those of an image begin;
    ``pixels``: ``(U,)``, those that are read, ``y * W + x``, those of each
    image together, and ``rows``, ``(N + 1,)``, where those of an image begin;
    ``row_of``: ``(N, H, W)``, int32, the table row of each pixel that is
    read; the others int64. ``y`` to ``x_length``: of :func:`find_taps`.
    ``out``: filled; ``(R, C, P, Q)``. ``first`` and ``last``: rows to begin
    with and to end before.
    """
    channels = maps.shape[1]
    blocks = (channels + CHANNELS - 1) // CHANNELS
    bins = y.shape[1] * x.shape[1]
    for row in range(first, last):
        image, block = divmod(row, blocks)
        if starts[image] == starts[image + 1]:
            continue
        begin = block * CHANNELS
        size = min(CHANNELS, channels - begin)
        # No slices of larger ones: rows must be known to be contiguous.
        read = pixels[rows[image] : rows[image + 1]]
        table = np.empty((len(read), size), maps.dtype)
        tile = np.empty((bins, size), maps.dtype)
        planes = maps[image].reshape(channels, -1)
        for channel in range(size):
            for at in range(len(read)):
                table[at, channel] = planes[begin + channel, read[at]]
        for at in range(starts[image], starts[image + 1]):
            region = regions[at]
            tile[:] = 0
            _pool(
                region,
                row_of[image],
                y,
                y_weight,
                y_length,
                x,
                x_weight,
                x_length,
                table,
                tile,
            )
            into = out[region].reshape(channels, -1)
            for channel in range(size):
                for bin_ in range(len(tile)):
                    into[begin + channel, bin_] = tile[bin_, channel]


@kernel(fastmath=FAST)
def spread(
    grad_out,
    regions,
    starts,
    pixels,
    rows,
    row_of,
    y,
    y_weight,
    y_length,
    x,
    x_weight,
    x_length,
    grad_maps,
    first,
    last,
):
    """Add the gradient to that of the maps: the transpose of :func:`average`.

    ``grad_out``: ``(R, C, P, Q)``; ``grad_maps``: changed; ``(N, C, H, W)``.
    """
    channels = grad_maps.shape[1]
    blocks = (channels + CHANNELS - 1) // CHANNELS
    bins = y.shape[1] * x.shape[1]
    for row in range(first, last):
        image, block = divmod(row, blocks)
        if starts[image] == starts[image + 1]:
            continue
        begin = block * CHANNELS
        size = min(CHANNELS, channels - begin)
        # No slices of larger ones: rows must be known to be contiguous.
        read = pixels[rows[image] : rows[image + 1]]
        table = np.zeros((len(read), size), grad_maps.dtype)
        tile = np.empty((bins, size), grad_maps.dtype)
        for at in range(starts[image], starts[image + 1]):
            region = regions[at]
            given = grad_out[region].reshape(channels, -1)
            for channel in range(size):
                for bin_ in range(len(tile)):
                    tile[bin_, channel] = given[begin + channel, bin_]
            _unpool(
                region,
                row_of[image],
                y,
                y_weight,
                y_length,
                x,
                x_weight,
                x_length,
                table,
                tile,
            )
        planes = grad_maps[image].reshape(channels, -1)
        for channel in range(size):
            for at in range(len(read)):
                planes[begin + channel, read[at]] += table[at, channel]
