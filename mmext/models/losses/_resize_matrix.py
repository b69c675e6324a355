"""Bilinear resize of one axis as pieces of a banded matrix.

Shape letters: Q sources (low resolution), P results (high resolution), M any
other elements.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ['Piece', 'ResizeAxis']

PRODUCT_DEVICES = {'cpu'}
"""Where a float32 matrix product is one; a GPU may keep three digits."""

SLACK = 0.01
"""Torch computes source positions in float32: at 10000 they are off by it."""


@dataclass(frozen=True)
class Piece:
    """Rows ``start`` to ``stop`` of the matrix of an axis.

    Args:
        start: First result.
        stop: Behind the last result.
        low: First source that the results read.
        high: Behind the last source that they read.
        weight: ``(stop - start, high - low)``, the matrix.
        span: At most so many results read one source.
    """

    start: int
    stop: int
    low: int
    high: int
    weight: Tensor
    span: int

    def resize(self, source: Tensor, dim: int, out: Tensor) -> None:
        """Write the results along ``dim`` into ``out``.

        Args:
            source: ``(high - low, M)`` with dim 0, ``(M, high - low)``
                with dim 1.
            dim: 0 or 1.
            out: ``(stop - start, M)`` or ``(M, stop - start)``, overwritten.
        """
        if source.device.type not in PRODUCT_DEVICES:
            out.zero_()
            _banded_sum(self.weight, source, dim, 2, out)
        elif dim == 0:
            torch.mm(self.weight, source, out=out)
        else:
            torch.mm(source, self.weight.t(), out=out)

    def add_transposed(self, grad: Tensor, dim: int, out: Tensor) -> None:
        """Add the gradient of the sources to ``out``.

        Args:
            grad: Gradient of the results, shaped as they are.
            dim: 0 or 1.
            out: Shaped as the sources.
        """
        if grad.device.type not in PRODUCT_DEVICES:
            _banded_sum(self.weight.t(), grad, dim, self.span, out)
        elif dim == 0:
            out.addmm_(self.weight.t(), grad)
        else:
            out.addmm_(grad, self.weight)


def _banded_sum(
    weight: Tensor, source: Tensor, dim: int, span: int, out: Tensor
) -> None:
    """Add ``weight @ source`` without a matrix product.

    Rows of ``weight`` have their non-zero entries within ``span`` columns.
    """
    last = weight.shape[1] - 1
    first = (weight != 0).to(torch.uint8).argmax(1)
    for offset in range(min(span, last + 1)):
        place = first + offset
        inside = place <= last
        place = place.clamp(max=last)
        factor = weight.gather(1, place[:, None]) * inside[:, None]
        picked = source.index_select(dim, place)
        out.addcmul_(picked, factor if dim == 0 else factor.t())


class ResizeAxis:
    """What ``F.interpolate`` does along one axis, with its rounding.

    Args:
        sources: ``Q``, at least 1.
        results: ``P``, at least 1.
        align_corners: As in ``F.interpolate``.
        dtype: Of the weights, float32 or float64.
        device: Of the weights.

    Attributes:
        first: ``(P,)`` int64, the lower of the two sources of each result.
        second: ``(P,)`` int64, the next one, or the last.
        parity: ``(2, P)``, weight of the even and of the odd source.

    Examples:
        >>> import torch
        >>> axis = ResizeAxis(2, 4, False, torch.float32, 'cpu')
        >>> axis.piece(0, 4).weight
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500],
                [0.2500, 0.7500],
                [0.0000, 1.0000]])
    """

    def __init__(
        self,
        sources: int,
        results: int,
        align_corners: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.sources, self.results = sources, results
        self.align_corners = align_corners
        if not align_corners:
            self.step = sources / results
        else:
            self.step = (sources - 1) / (results - 1) if results > 1 else 0.0
        shift = 0.0 if align_corners else 0.5
        place = torch.arange(results, dtype=dtype, device=device)
        place = ((place + shift) * self.step - shift).clamp_(min=0)
        self.first = place.long().clamp_(max=sources - 1)
        self.second = (self.first + 1).clamp_(max=sources - 1)
        # Two neighbours differ in parity: resized, a comb of the even
        # sources is the weight of whichever of the two is even.
        odd = torch.arange(sources, device=device) % 2
        self.parity = F.interpolate(
            torch.stack([1 - odd, odd])[None].to(dtype),
            size=results,
            mode='linear',
            align_corners=align_corners,
        )[0]

    def taps(self) -> tuple[Tensor, Tensor]:
        """Both sources of each result, ``(2, P)`` int32, and their weights."""
        sources = torch.stack([self.first, self.second])
        weights = self.parity.gather(0, sources % 2)
        weights[1].masked_fill_(self.first == self.second, 0)
        return sources.int(), weights

    @property
    def span(self) -> int:
        """At most so many results read one source."""
        if not self.step:
            return self.results
        return min(self.results, math.ceil(2 / self.step) + 2)

    def band(self, start: int, stop: int) -> tuple[int, int]:
        """Sources that the results from ``start`` to ``stop`` read."""
        shift = 0.0 if self.align_corners else 0.5
        low = (start + shift) * self.step - shift - SLACK
        high = (stop - 1 + shift) * self.step - shift + SLACK
        low = min(max(math.floor(low), 0), self.sources - 1)
        return low, min(max(math.floor(high) + 2, low + 1), self.sources)

    def piece(self, start: int, stop: int) -> Piece:
        """The matrix of the results from ``start`` to ``stop``.

        Args:
            start: In [0, P).
            stop: In (start, P].
        """
        low, high = self.band(start, stop)
        source = torch.arange(low, high, device=self.first.device)
        reads = (source == self.first[start:stop, None]) | (
            source == self.second[start:stop, None]
        )
        weight = self.parity[:, start:stop].t().index_select(1, source % 2)
        return Piece(start, stop, low, high, weight * reads, self.span)

    def pieces(self, longest: int) -> list[Piece]:
        """The whole matrix, in equal pieces of ``longest`` results or less."""
        count = math.ceil(self.results / max(longest, 1))
        edges = [self.results * k // count for k in range(count + 1)]
        return [self.piece(a, b) for a, b in pairwise(edges)]
