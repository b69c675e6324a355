"""Cross-entropy of resized logits on a CPU, by a kernel that numba compiles.

The columns are resized by PyTorch; the kernel does the rest, a row of labels
at a time: rows, softmax, loss, gradient. It is compiled at its first call, and
kept on disk. The factors ``total`` and ``hard`` are explained in
``_resized_cross_entropy``.

Shape letters: C channels, w and W columns of the logits and of the labels; R
rows of a strip, K rows of the logits that it reads.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

from ...utils.jit import FAST, kernel, run_rows
from ._resized_cross_entropy import (
    FLOOR,
    TOO_LARGE,
    PixelTerms,
    ResizeAxis,
    StripPass,
)

LN_2 = math.log(2)

TILE = 256
"""Columns of a row that are done at once: their logits stay in the cache."""
SOURCES = 16
"""Rows of the logits that a strip reads, if they are not too large."""


def _polynomial(
    function: Callable, degree: int, domain: tuple[float, float]
) -> tuple[np.float32, ...]:
    """Coefficients of an approximation, highest first."""
    fit = Chebyshev.interpolate(function, degree, domain=domain)
    return tuple(map(np.float32, fit.convert(kind=Polynomial).coef[::-1]))


# Of the result, they are off by 2e-7 at most.
POWER = _polynomial(np.exp2, 6, (-0.5, 0.5))
LOG_RATIO = _polynomial(lambda x: np.log2(1 + x) / x, 10, (0, 1))
MANTISSA = np.int32((1 << 23) - 1)
ONE = np.float32(1).view(np.int32)


# Unlike those of numpy, the next two can be done for many numbers at once.


@kernel(fastmath=FAST)
def _power(x):
    """``2 ** x`` for x at most 0."""
    whole = np.floor(x + np.float32(0.5))
    part = x - whole
    result = POWER[0]
    for k in range(1, len(POWER)):
        result = result * part + POWER[k]
    # With the exponent -127, all bits are 0, and so is the result.
    exponent = np.int32(max(whole, np.float32(-127))) + np.int32(127)
    return result * np.int32(exponent << np.int32(23)).view(np.float32)


@kernel(fastmath=FAST)
def _log2(x):
    """Logarithm of a number that is 1 or more."""
    bits = np.float32(x).view(np.int32)
    part = np.int32((bits & MANTISSA) | ONE).view(np.float32) - np.float32(1)
    ratio = LOG_RATIO[0]
    for k in range(1, len(LOG_RATIO)):
        ratio = ratio * part + LOG_RATIO[k]
    exponent = np.float32((bits >> np.int32(23)) - np.int32(127))
    return exponent + part * ratio if x == x else x


@kernel(fastmath=FAST)
def _resize(plane, taps, tile, out):
    """Columns ``tile`` of a row that lies between two of a plane."""
    upper, lower, upper_w, lower_w = taps
    above, below = plane[upper, tile], plane[lower, tile]
    for x in range(len(out)):
        out[x] = upper_w * above[x] + lower_w * below[x]


@kernel(fastmath=FAST)
def _add_gradient(plane, taps, tile, grad):
    """Add the gradient of :func:`_resize` to a plane."""
    upper, lower, upper_w, lower_w = taps
    above, below = plane[upper, tile], plane[lower, tile]
    for x in range(len(grad)):
        above[x] += upper_w * grad[x]
        below[x] += lower_w * grad[x]


@kernel(fastmath=FAST)
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


@kernel(fastmath=FAST)
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
    # Of the size of float32, for as many at once: best class, and label.
    best, own = np.empty(TILE, np.int32), np.empty(TILE, np.int32)
    for row in range(len(label)):
        taps = (
            sources[row, 0],
            sources[row, 1],
            weights[row, 0],
            weights[row, 1],
        )
        for start in range(first, last, TILE):
            tile = slice(start, min(start + TILE, last))
            out, given, counts = (
                loss[row, tile],
                label[row, tile],
                valid[row, tile],
            )
            size = len(out)
            labels = own[:size]
            for x in range(size):
                labels[x] = given[x] if counts[x] else -1
            top, label_z = floats[0, :size], floats[1, :size]
            factor, mean_z = floats[2, :size], floats[3, :size]
            _softmax(
                wide, taps, tile, labels, powers, top, best, label_z, factor
            )
            part, whole = hard[row, tile], total[row, tile]
            if plain:
                part = whole = floats[4, :size]
                for x in range(size):
                    part[x] = labels[x] >= 0
            for x in range(size):
                log_sum = _log2(factor[x]) * np.float32(LN_2)
                out[x] = part[x] * (log_sum - label_z[x])
                label_z[x] = log_sum + top[x]
                factor[x] = whole[x] / factor[x]
            for x in range(size):
                hits += best[x] == labels[x]
            if classes < len(wide):
                _resize(wide[classes], taps, tile, mean_z)
                for x in range(size):
                    spread = whole[x] - part[x]
                    out[x] += spread * (label_z[x] - mean_z[x])
                    mean_z[x] = -spread
            for x in range(size):
                out[x] = out[x] if labels[x] >= 0 else np.float32(0)
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


@kernel(fastmath=FAST)
def narrow(wide, taps, weights, out, first, last):
    """Gradient of the resize of columns, ``(*, W)``, added to ``(*, w)``.

    ``taps`` and ``weights``: ``(2, W)``, of :class:`ResizeAxis`.
    """
    for row in range(first, last):
        given, total = wide[row], out[row]
        for x in range(len(given)):
            total[taps[0, x]] += weights[0, x] * given[x]
            total[taps[1, x]] += weights[1, x] * given[x]


class KernelPass(StripPass):
    """The strips by the kernel; float32 on a CPU."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.columns = ResizeAxis(
            self.logits.shape[3],
            self.size[1],
            self.align_corners,
            torch.float32,
            'cpu',
        )

    def num_rows(self, in_strip: int) -> int:
        """Rows of a strip, of which only sources and some maps are made."""
        # Strips share a row or two of the sources, so these are not few.
        sources = max(in_strip, min(4 * in_strip, SOURCES))
        rows = in_strip * self.logits.shape[1] / 2
        return int(min((sources - 2) / max(self.rows.step, 1e-6), rows))

    def visit(
        self, n: int, rows: slice, grad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Losses ``(R, W)`` of a strip of image ``n``, and number of hits."""
        low, high = self.rows.band(rows)
        source = self.logits[n, :, low:high].contiguous().float()
        source = source.clamp(min=FLOOR)
        if self.share is not None:
            mean = torch.tensordot(self.share, source, 1)
            source = torch.cat([source, mean[None]])
        wide = self.widen(source)
        wide_grad = wide if grad is None else torch.zeros_like(wide)
        valid = self.targets.valid[n, rows]
        loss = wide.new_empty(valid.shape)
        plain = self.targets.is_plain
        if plain:
            target = self.targets.label[n, rows].long()
            terms = PixelTerms(target, loss, loss)
        else:
            terms = self.targets.terms(n, rows)
        taps, weights = self.rows.taps
        tensors = (
            wide,
            wide_grad,
            # The kernel does not look whether a row is there.
            (taps[:, rows].t() - low).clamp(0, high - low - 1),
            weights[:, rows].t(),
            terms.target,
            valid,
            terms.total,
            terms.hard,
            loss,
        )
        run = partial(
            visit,
            len(self.logits[n]),
            *[tensor.numpy() for tensor in tensors],
            plain,
            grad is not None,
        )
        hits = sum(run_rows(run, [], self.size[1], least=TILE))
        if grad is not None:
            out = torch.zeros_like(source)
            arrays = (wide_grad, *self.columns.taps, out)
            flat = [t.flatten(0, -2).numpy() for t in arrays]
            run_rows(narrow, flat, len(flat[0]))
            if self.share is not None:
                out, mean = out[:-1], out[-1]
                out.addcmul_(self.share[:, None, None], mean)
            grad[:, low:high] += out
        return loss, torch.tensor(hits)
