"""Kernels of non-maximum suppression for CPUs, compiled by numba.

Their arithmetic is that of compiled mmcv, operation by operation: a box on
the threshold decides by its last bit. Loops without a branch and with one
type throughout are those that take several boxes at once.
"""

import numpy as np

from ..utils.jit import kernel


@kernel()
def _overlaps(rows, at, first, last, offset, iou):
    """Fill ``iou`` with that of one box and those in ``[first, last)``."""
    zero = rows.dtype.type(0)
    x1, y1, x2, y2 = rows[0, at], rows[1, at], rows[2, at], rows[3, at]
    area = rows[4, at]
    left, upper = rows[0, first:last], rows[1, first:last]
    right, lower = rows[2, first:last], rows[3, first:last]
    other = rows[4, first:last]
    for j in range(last - first):
        width = min(right[j], x2) - max(left[j], x1) + offset
        height = min(lower[j], y2) - max(upper[j], y1) + offset
        width = width if width > zero else zero
        height = height if height > zero else zero
        inter = width * height
        iou[j] = inter / (area + other[j] - inter)


@kernel()
def suppress(rows, rank, box_of, threshold, inclusive, offset, reach, by):
    """Let every box that is left suppress those after it that it overlaps.

    The boxes lie in the order of their left edges, so those that a box can
    overlap are one stretch.

    Args:
        rows: ``(5, N)``: x1 y1 x2 y2 area, ascending by x1.
        rank: ``(N,)``, int32, position of each box in the order of scores.
        box_of: ``(N,)``, int32, where the box of each rank is.
        threshold: IoU, of the type of ``rows``, like the next but one.
        inclusive: Whether a box on the threshold goes, too.
        offset: What is added to differences of coordinates.
        reach: Width of the widest box and the offset; infinite for
            comparing all boxes.
        by: ``(N,)``, int32, at first ``rank``; filled with the rank of the
            box that suppressed each, which is its own for one that is left.
    """
    ious = np.empty(len(rank), rows.dtype)
    for i in range(len(rank)):
        at = box_of[i]
        if by[at] != i:
            continue
        first, last = 0, len(rank)
        if np.isfinite(reach):
            first = np.searchsorted(rows[0], rows[0, at] - reach)
            right = rows[2, at] + offset
            last = np.searchsorted(rows[0], right, side='right')
        _overlaps(rows, at, first, last, offset, ious)
        ranks, winner = rank[first:last], by[first:last]
        for j in range(last - first):
            hit = ious[j] >= threshold if inclusive else ious[j] > threshold
            open_ = (ranks[j] > i) & (winner[j] == ranks[j])
            winner[j] = i if hit & open_ else winner[j]


@kernel()
def lower_scores(rows, score, index, method, threshold, sigma, lowest, offset):
    """Soft suppression in place; returns how many boxes stay in front.

    Dropped boxes are swapped with the last ones, as in compiled mmcv: that
    order decides between equal scores.

    Args:
        rows: ``(5, N)``: x1 y1 x2 y2 area.
        score: ``(N,)``, the type of ``rows``, like the last four.
        index: ``(N,)``, int64.
        method: 0 for a factor of 0, 1 for 1 - IoU, 2 for a Gaussian.
        threshold: IoU from which on methods 0 and 1 lower a score.
        sigma: Of the Gaussian of method 2.
        lowest: Score below which a box is dropped.
        offset: What is added to differences of coordinates.
    """
    zero, one = score.dtype.type(0), score.dtype.type(1)
    count = len(score)
    ious = np.empty(count, score.dtype)
    i = 0
    while i < count:
        _swap(rows, score, index, i, i + np.argmax(score[i:count]))
        _overlaps(rows, i, i + 1, count, offset, ious)
        rest = score[i + 1 : count]
        if method == 2:
            for j in range(len(rest)):
                # Most do not overlap, and exp(0) is known.
                if ious[j] != zero:
                    rest[j] *= np.exp(-(ious[j] * ious[j]) / sigma)
        else:
            for j in range(len(rest)):
                factor = one - ious[j] if method == 1 else zero
                rest[j] *= factor if ious[j] >= threshold else one
        j = i + 1
        while j < count:
            if score[j] < lowest:
                count -= 1
                _swap(rows, score, index, j, count)
            else:
                j += 1
        i += 1
    return count


@kernel()
def _swap(rows, score, index, i, j):
    """Swap two boxes."""
    for row in range(5):
        rows[row, i], rows[row, j] = rows[row, j], rows[row, i]
    score[i], score[j] = score[j], score[i]
    index[i], index[j] = index[j], index[i]
