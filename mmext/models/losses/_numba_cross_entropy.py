"""Cross-entropy of resized logits on a CPU, by a kernel that numba compiles.

The columns are resized by matrix products, as without numba; the kernel does
the rest, a row of labels at a time: rows, softmax, loss, gradient. It is
compiled at its first call, and kept on disk. The factors ``total`` and
``hard`` are explained in ``_resized_cross_entropy``.

Shape letters: C channels, W columns; R rows of a strip, K source rows of a
band.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
import torch
from numba import njit
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

from ._resized_cross_entropy import (
    FLOOR,
    LN_2,
    TOO_LARGE,
    Piece,
    PixelTerms,
    StripPass,
)

__all__ = ['KernelPass']

TILE = 256
"""Columns of a row that are done at once: their logits stay in the cache."""


def _coefficients() -> tuple[np.float32, ...]:
    """Of ``2 ** x`` in [-0.5, 0.5], highest first; off by 1e-8 at most."""
    fit = Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5])
    return tuple(np.float32(c) for c in fit.convert(kind=Polynomial).coef)[
        ::-1
    ]


COEFFICIENTS = _coefficients()


def _compiled(function: Callable) -> Callable:
    """Compile a function at its first call."""
    options = {
        'nogil': True,
        'error_model': 'numpy',
        # Without 'nnan' and 'ninf': what is not finite has to be seen.
        'fastmath': {'arcp', 'contract', 'nsz', 'reassoc'},
    }
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        # No folder to keep it in: each process compiles it again.
        return njit(**options)(function)


@_compiled
def _power(x):
    """``2 ** x`` for x at most 0, as compilers can do it for many at once."""
    whole = np.floor(x + np.float32(0.5))
    part = x - whole
    result = COEFFICIENTS[0]
    for k in range(1, len(COEFFICIENTS)):
        result = result * part + COEFFICIENTS[k]
    # With the exponent -127, all bits are 0, and so is the result.
    exponent = np.int32(max(whole, np.float32(-127))) + np.int32(127)
    return result * np.int32(exponent << np.int32(23)).view(np.float32)


@_compiled
def _resize(plane, taps, tile, out):
    """Columns ``tile`` of a row that lies between two of a plane."""
    upper, lower, upper_w, lower_w = taps
    above, below = plane[upper, tile], plane[lower, tile]
    for x in range(len(out)):
        out[x] = upper_w * above[x] + lower_w * below[x]


@_compiled
def _add_gradient(plane, taps, tile, grad):
    """Add the gradient of :func:`_resize` to a plane."""
    upper, lower, upper_w, lower_w = taps
    above, below = plane[upper, tile], plane[lower, tile]
    for x in range(len(grad)):
        above[x] += upper_w * grad[x]
        below[x] += lower_w * grad[x]


@_compiled
def _softmax(wide, taps, tile, labels, z, top, best, label_z, power_sum):
    """Powers of the logits, their sum, and what else the loss needs.

    ``z``: ``(C, X)``, filled, as are the others, ``(X,)``: the largest logit,
    its class, and how much lower that of the label is.
    """
    size, nothing = len(labels), np.float32(-TOO_LARGE)
    log2_e = np.float32(1 / LN_2)
    top[:] = -np.inf
    for c in range(len(z)):
        row = z[c, :size]
        _resize(wide[c], taps, tile, row)
        for x in range(size):
            more = row[x] > top[x]
            top[x] = row[x] if more else top[x]
            best[x] = c if more else best[x]
    for x in range(size):
        # Where all logits are -inf, as PyTorch has it.
        top[x] = np.nan if top[x] < nothing else top[x]
    power_sum[:] = 0
    for c in range(len(z)):
        row = z[c, :size]
        for x in range(size):
            row[x] -= top[x]
            label_z[x] = row[x] if labels[x] == c else label_z[x]
            row[x] = _power(row[x] * log2_e)
            power_sum[x] += row[x]


@_compiled
def visit(
    classes,
    wide,
    grad,
    sources,
    weights,
    label,
    valid,
    total,
    hard,
    loss,
    plain,
    with_grad,
    first,
    last,
):
    """Fill ``loss`` of some columns, and return how many pixels are right.

    Args:
        classes: C.
        wide: ``(C, K, W)``, and with label smoothing one more channel, which
            holds the mean.
        grad: Of the same shape; gradients are added.
        sources: ``(R, 2)``, the rows of ``wide`` that each row reads.
        weights: ``(R, 2)``.
        label: ``(R, W)``, int64, any value where not valid.
        valid: ``(R, W)``, bool.
        total: ``(R, W)``, as are the next two.
        hard: See above.
        loss: Is filled.
        plain: ``total`` and ``hard`` are those of ``valid``, and not read.
        with_grad: Whether to touch ``grad``.
        first: The first column.
        last: The one behind the last.
    """
    hits = 0
    powers = np.empty((classes, TILE), np.float32)
    floats = np.empty((5, TILE), np.float32)
    best = np.empty(TILE, np.int64)
    for row in range(len(label)):
        taps = (
            sources[row, 0],
            sources[row, 1],
            weights[row, 0],
            weights[row, 1],
        )
        for start in range(first, last, TILE):
            tile = slice(start, min(start + TILE, last))
            labels, counts = label[row, tile], valid[row, tile]
            size, out = len(labels), loss[row, tile]
            top, label_z = floats[0, :size], floats[1, :size]
            factor, mean_z = floats[2, :size], floats[3, :size]
            _softmax(
                wide, taps, tile, labels, powers, top, best, label_z, factor
            )
            part, whole = hard[row, tile], total[row, tile]
            if plain:
                part = whole = floats[4, :size]
                for x in range(size):
                    part[x] = counts[x]
            for x in range(size):
                log_sum = np.log2(factor[x]) * np.float32(LN_2)
                out[x] = part[x] * (log_sum - label_z[x])
                label_z[x] = log_sum + top[x]
                factor[x] = whole[x] / factor[x]
            for x in range(size):
                hits += counts[x] and best[x] == labels[x]
            if classes < len(wide):
                _resize(wide[classes], taps, tile, mean_z)
                for x in range(size):
                    spread = whole[x] - part[x]
                    out[x] += spread * (label_z[x] - mean_z[x])
                    mean_z[x] = -spread
            for x in range(size):
                out[x] = out[x] if counts[x] else np.float32(0)
            if with_grad:
                if classes < len(wide):
                    _add_gradient(grad[classes], taps, tile, mean_z)
                for c in range(classes):
                    change = powers[c, :size]
                    for x in range(size):
                        one = part[x] if labels[x] == c else np.float32(0)
                        change[x] = change[x] * factor[x] - one
                    _add_gradient(grad[c], taps, tile, change)
    return hits


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of a process; those of its parent are not in a fork."""
    return ThreadPoolExecutor(threads, 'mmext-cross-entropy')


def _in_threads(run: Callable[[int, int], int], columns: int) -> int:
    """Run on all columns, in as many threads as PyTorch has; the sum."""
    threads = min(torch.get_num_threads(), -(-columns // TILE))
    if threads <= 1:
        return run(0, columns)
    edges = [columns * part // threads for part in range(threads + 1)]
    return sum(_pool(os.getpid(), threads).map(run, edges[:-1], edges[1:]))


class KernelPass(StripPass):
    """The walk over strips with the kernel; float32 on a CPU."""

    # The kernel makes nothing; of each pixel it is given a target of 8
    # bytes, its mask, two factors, and a place for the loss.
    strip_maps = 6

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
        valid = self.targets.valid[n, rows]
        loss = torch.empty(valid.shape, dtype=self.targets.dtype)
        plain = self.targets.is_plain
        if plain:
            target = self.targets.label[n, rows].long()
            terms = PixelTerms(target, loss, loss)
        else:
            terms = self.targets.terms(n, rows)
        sources, weights = self.plan.rows.taps
        tensors = (
            wide,
            wide if wide_grad is None else wide_grad,
            # The kernel does not look whether a row is there.
            sources[:, rows].t().clamp(strip.low, strip.high - 1) - low,
            weights[:, rows].t(),
            terms.target,
            valid,
            terms.total,
            terms.hard,
            loss,
        )
        run = partial(
            visit,
            self.classes,
            *[tensor.numpy() for tensor in tensors],
            plain,
            wide_grad is not None,
        )
        hits = _in_threads(run, self.plan.width)
        self.hits.append(torch.full((), hits))
        return loss

    def low_resolution(self, n: int, low: int, high: int) -> Tensor:
        """Rows of image ``n`` as ``(C, K, w)``, finite or NaN."""
        rows = self.logits[n, :, low:high].to(self.targets.dtype)
        rows = rows.clamp(min=FLOOR)
        if self.share is not None:
            mean = torch.tensordot(self.share, rows, 1)
            rows = torch.cat([rows, mean[None]])
        return rows.contiguous()

    def add_gradient(self, narrow: Tensor, out: Tensor) -> None:
        """Add ``(C, K, w)`` to ``out`` of the same shape, less the mean."""
        super().add_gradient(narrow.transpose(0, 1), out)
