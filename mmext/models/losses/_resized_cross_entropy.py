"""Cross-entropy of resized logits, a few rows at a time.

Per pixel, with ``p`` the softmax of the logits ``z``, the loss is
``total * lse(z) - hard * z[label] - (total - hard) * sum(share * z)`` and its
gradient ``total * p - hard * onehot(label) - (total - hard) * share``. Without
label smoothing, ``total`` equals ``hard``. The bilinear resize along an axis
is a product with a banded matrix, cut into pieces.

Shape letters: N images, C classes, h and w rows and columns of the logits, H
and W of the labels; R rows of a strip, K source rows of a band; Q sources (low
resolution) and P results (high resolution) along an axis, M other elements.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)

FLOOR = -1e30
"""Stands for -inf, which would give NaN when multiplied by a weight of 0."""
TOO_LARGE = 1e20
"""A loss above it comes from FLOOR, so it is inf."""
PRODUCT_DEVICES = {'cpu'}
"""Devices with exact float32 matrix products; a GPU may keep 3 digits."""

SLACK = 0.01
"""Torch computes source positions in float32: at 10000 they are off by it."""
STRIP_BYTES = 1 << 20
"""Size of a strip on a CPU: about the L2 cache of a core."""
DEVICE_STRIP_BYTES = 32 << 20
"""The same on other devices, where each step costs a launch."""
BAND_FACTOR = 4
"""Largest size, in strips, of a band of rows that are resized along W."""
BAND_SOURCES = 16
"""Fewest rows of a band, whatever its size; bands share a row or two."""
ROW_SOURCES, COLUMN_SOURCES = 8, 32
"""Sources resized by one matrix; most of a larger one would be zeros."""
ROWS = 64
"""Fewest rows resized by one matrix: each strip costs its calls."""


@dataclass(frozen=True)
class PixelTerms:
    """Factors of the loss of each pixel; see the module's formula.

    ``target``: ``(*)`` int64 in [0, C), 0 where the label does not count;
    ``total``: ``(*)``, factor of the log-sum-exp; ``hard``: ``(*)``, factor of
    the label's logit.
    """

    target: Tensor
    total: Tensor
    hard: Tensor


@dataclass(frozen=True)
class PixelTargets:
    """Labels of all pixels and what their losses are multiplied by.

    Args:
        label: ``(N, H, W)``, any integer dtype.
        valid: ``(N, H, W)`` bool. Where it is False, the label and the
            weight may hold anything, and the loss is 0.
        num_classes: ``C``.
        dtype: Of the factors, float32 or float64.
        class_weight: ``(C,)`` or None for ones.
        weight: ``(N, H, W)`` or None for ones.
        label_smoothing: In [0, 1].
    """

    label: Tensor
    valid: Tensor
    num_classes: int
    dtype: torch.dtype
    class_weight: Tensor | None = None
    weight: Tensor | None = None
    label_smoothing: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether the loss of each valid pixel counts once."""
        return (
            self.class_weight is None
            and self.weight is None
            and not self.label_smoothing
        )

    def terms(self, image: int, rows: slice) -> PixelTerms:
        """Targets and factors of some rows of an image."""
        valid = self.valid[image, rows]
        target = torch.where(valid, self.label[image, rows], 0).long()
        scale = valid.to(self.dtype)
        if self.weight is not None:
            weight = self.weight[image, rows].to(self.dtype)
            scale = weight.masked_fill(~valid, 0)
        hard, weight_sum = scale, self.num_classes
        if self.class_weight is not None:
            of_target = self.class_weight.index_select(0, target.flatten())
            hard = scale * of_target.view_as(target)
            weight_sum = self.class_weight.sum()
        if not self.label_smoothing:
            return PixelTerms(target, hard, hard)
        hard = hard * (1 - self.label_smoothing)
        spread = scale * (self.label_smoothing / self.num_classes * weight_sum)
        return PixelTerms(target, hard + spread, hard)

    def share(self) -> Tensor | None:
        """``(C,)`` part of each class in the smoothing, None without it."""
        if not self.label_smoothing:
            return None
        if self.class_weight is None:
            return torch.full(
                (self.num_classes,),
                1 / self.num_classes,
                dtype=self.dtype,
                device=self.label.device,
            )
        weight_sum = self.class_weight.sum()
        none = weight_sum == 0
        return self.class_weight / weight_sum.masked_fill(none, 1)


@dataclass(frozen=True)
class PassResult:
    """What one pass over the pixels gives.

    ``num_correct``: Valid pixels whose largest logit is the label's; of equal
    logits the first class counts. 0-dim int64; ``grad``: ``(N, C, h, w)``,
    gradient of ``total``, or None; ``loss``: ``(N, H, W)``, or None.
    """

    total: Tensor
    num_correct: Tensor
    grad: Tensor | None
    loss: Tensor | None


def binary_logits(logits: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
    """Logits for a softmax of powers of two, at most 0.

    A softmax does not see what all classes have in common, whether it is
    taken off before the resize or after it; and ``exp2`` is three times as
    fast as ``exp`` on a CPU.

    ``logits``: ``(*, C, *)``, float.
    """
    logits = logits.to(dtype)
    top = logits.amax(dim, keepdim=True)
    return (logits - top).mul_(LOG2_E).clamp_(min=FLOOR)


@dataclass(frozen=True)
class Piece:
    """Rows ``start`` to ``stop`` of the matrix of an axis.

    ``weight``: ``(stop - start, high - low)``, the matrix; None for ones on
    the diagonal.
    """

    start: int
    stop: int
    low: int
    high: int
    weight: Tensor | None
    span: int

    def resize(self, source: Tensor, dim: int, out: Tensor) -> None:
        """Write the results along ``dim`` into ``out``.

        ``source``: ``(high - low, M)`` with dim 0, ``(M, high - low)`` with
        dim 1; ``out``: ``(stop - start, M)`` or ``(M, stop - start)``,
        overwritten.
        """
        if self.weight is None:
            out.copy_(source)
        elif source.device.type not in PRODUCT_DEVICES:
            out.zero_()
            _banded_sum(self.weight, source, dim, 2, out)
        elif dim == 0:
            torch.mm(self.weight, source, out=out)
        else:
            torch.mm(source, self.weight.t(), out=out)

    def add_transposed(self, grad: Tensor, dim: int, out: Tensor) -> None:
        """Add the gradient of the sources to ``out``.

        ``grad``: Gradient of the results, shaped as they are; ``out``: Shaped
        as the sources.
        """
        if self.weight is None:
            out.add_(grad)
        elif grad.device.type not in PRODUCT_DEVICES:
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
        location = first + offset
        inside = location <= last
        location = location.clamp(max=last)
        factor = weight.gather(1, location[:, None]) * inside[:, None]
        picked = source.index_select(dim, location)
        out.addcmul_(picked, factor if dim == 0 else factor.t())


class ResizeAxis:
    """What ``F.interpolate`` does along one axis, with its rounding.

    ``dtype``: Of the weights, float32 or float64.

    Attributes:
        first: ``(P,)`` int64, the lower of the two sources of each result.
        second: ``(P,)`` int64, the next one, or the last.
        parity: ``(2, P)``, weight of the even and of the odd source.
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
        location = torch.arange(results, dtype=dtype, device=device)
        location = ((location + shift) * self.step - shift).clamp_(min=0)
        self.first = location.long().clamp_(max=sources - 1)
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

    @cached_property
    def taps(self) -> tuple[Tensor, Tensor]:
        """Both sources of each result, ``(2, P)`` int32, and their weights.

        The second one is the first where its weight is 0.
        """
        sources = torch.stack([self.first, self.second])
        weights = self.parity.gather(0, sources % 2)
        weights[1].masked_fill_(self.first == self.second, 0)
        sources[1] = torch.where(weights[1] == 0, self.first, self.second)
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
        """The matrix of the results from ``start`` to ``stop``."""
        if self.sources == self.results:
            return Piece(start, stop, start, stop, None, 1)
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


class ResizePlan:
    """How the resize of one image is cut into bands and strips.

    ``source``: ``(h, w)``; ``size``: ``(H, W)``; ``dtype``: float32 or
    float64; ``strip_maps``: Values that are made for each pixel of a strip,
    if its rows are not resized by a product, which makes ``channels``.
    """

    def __init__(
        self,
        source: tuple[int, int],
        size: tuple[int, int],
        align_corners: bool,
        channels: int,
        dtype: torch.dtype,
        device: torch.device,
        strip_maps: int | None = None,
    ) -> None:
        self.rows, columns = (
            ResizeAxis(a, b, align_corners, dtype, device)
            for a, b in zip(source, size)
        )
        self.source_width, self.width = source[1], size[1]
        self.columns = columns.pieces(
            math.ceil(COLUMN_SOURCES * size[1] / source[1])
        )
        map_bytes = size[1] * dtype.itemsize
        if device.type in PRODUCT_DEVICES:
            limit, most = STRIP_BYTES, size[0]
            if strip_maps is None:
                most = max(ROW_SOURCES * size[0] // source[0], ROWS)
        else:
            limit, most = DEVICE_STRIP_BYTES, size[0]
        in_strip, in_band = (
            factor * limit // (channels * map_bytes)
            for factor in (1, BAND_FACTOR)
        )
        self.band_rows = max(in_strip, min(in_band, BAND_SOURCES), 1)
        most = min(
            most,
            limit // ((strip_maps or channels) * map_bytes),
            math.ceil(self.band_rows * size[0] / source[0]),
        )
        self.strips = self.rows.pieces(most)

    def bands(self) -> Iterator[tuple[int, int, list[Piece]]]:
        """Source rows (first, behind the last) with the strips they serve."""
        group: list[Piece] = []
        for strip in self.strips:
            if group and strip.high - group[0].low > self.band_rows:
                yield group[0].low, group[-1].high, group
                group = []
            group.append(strip)
        yield group[0].low, group[-1].high, group

    def widen(self, rows: Tensor) -> Tensor:
        """Resize the columns: ``(K, C, w)`` to ``(K, C, W)``."""
        if self.width == self.source_width:
            return rows
        out = rows.new_empty(*rows.shape[:2], self.width)
        flat, wide = rows.flatten(0, 1), out.flatten(0, 1)
        for piece in self.columns:
            piece.resize(
                flat[:, piece.low : piece.high],
                1,
                wide[:, piece.start : piece.stop],
            )
        return out

    def narrow(self, grad: Tensor) -> Tensor:
        """Gradient of :meth:`widen`: ``(K, C, W)`` to ``(K, C, w)``."""
        if self.width == self.source_width:
            return grad
        out = grad.new_zeros(*grad.shape[:2], self.source_width)
        flat, narrow = grad.flatten(0, 1), out.flatten(0, 1)
        for piece in self.columns:
            piece.add_transposed(
                flat[:, piece.start : piece.stop],
                1,
                narrow[:, piece.low : piece.high],
            )
        return out


cpu_plan = lru_cache(maxsize=32)(ResizePlan)
"""Made once for each size: making it takes as long as a small image."""


class StripPass:
    """Walk over the strips of all images, collecting sums and gradients.

    ``logits``: ``(N, C, h, w)``, float; ``size``: ``(H, W)``; ``targets``: Of
    all pixels; float32 or float64 as the work is to be.
    """

    strip_maps: int | None = None

    def __init__(
        self,
        logits: Tensor,
        size: tuple[int, int],
        align_corners: bool,
        targets: PixelTargets,
    ) -> None:
        self.logits, self.targets = logits, targets
        self.share = targets.share()
        self.classes = logits.shape[1]
        make = cpu_plan if logits.device.type == 'cpu' else ResizePlan
        self.plan = make(
            tuple(logits.shape[2:]),
            size,
            align_corners,
            self.classes + (self.share is not None),
            targets.dtype,
            logits.device,
            self.strip_maps,
        )
        rank = torch.arange(self.classes, 0, -1, device=logits.device)
        self.rank = rank.to(targets.dtype)[:, None]
        self.sums = [torch.zeros((), dtype=targets.dtype, device=rank.device)]
        self.hits = [torch.zeros((), dtype=torch.int64, device=rank.device)]

    def run(self, grad: Tensor | None, loss: Tensor | None) -> None:
        """Visit all strips once.

        ``grad``: ``(N, C, h, w)``, added to, or None; ``loss``: ``(N, H,
        W)``, overwritten, or None.
        """
        for n in range(len(self.logits)):
            self.visit_image(
                n,
                None if grad is None else grad[n],
                None if loss is None else loss[n],
            )

    def visit_image(
        self, n: int, grad: Tensor | None, loss: Tensor | None
    ) -> None:
        """Visit the strips of an image, band by band."""
        for low, high, strips in self.plan.bands():
            wide = self.plan.widen(self.low_resolution(n, low, high))
            wide_grad = None if grad is None else torch.zeros_like(wide)
            for strip in strips:
                pixel = self.visit(n, strip, low, wide, wide_grad)
                self.sums.append(pixel.sum())
                if loss is not None:
                    loss[strip.start : strip.stop] = pixel
            if grad is not None:
                self.add_gradient(
                    self.plan.narrow(wide_grad), grad[:, low:high]
                )

    def low_resolution(self, n: int, low: int, high: int) -> Tensor:
        """Rows of image ``n`` as ``(K, C, w)``, see :func:`binary_logits`.

        A further channel holds the mean that label smoothing needs.
        """
        rows = self.logits[n, :, low:high]
        rows = binary_logits(rows, self.targets.dtype, 0)
        if self.share is not None:
            mean = torch.tensordot(self.share, rows, 1)
            rows = torch.cat([rows, mean[None]])
        return rows.transpose(0, 1).contiguous()

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
        band = slice(strip.low - low, strip.high - low)
        terms, valid = self.targets.terms(n, rows), self.targets.valid[n, rows]
        every = wide.new_empty(strip.stop - strip.start, *wide.shape[1:])
        strip.resize(wide[band].flatten(1), 0, every.flatten(1))
        z, target = every[:, : self.classes], terms.target[:, None]
        label_z = z.gather(1, target)
        top = z.amax(1, keepdim=True)
        hit = self.is_first(z, top, terms.target)
        self.hits.append((hit & valid).sum())
        z.sub_(top).exp2_()
        power_sum = z.sum(1, keepdim=True)
        log_sum = power_sum.log2()
        label_z -= top
        loss = terms.hard * (log_sum - label_z)[:, 0]
        if self.share is not None:
            mean_z = every[:, self.classes] - top[:, 0]
            spread = terms.total - terms.hard
            loss += spread * (log_sum[:, 0] - mean_z)
            every[:, self.classes] = -spread
        loss.mul_(LN_2).masked_fill_(~valid, 0)
        if wide_grad is not None:
            factor = terms.total[:, None] / power_sum
            z.mul_(factor)
            label_grad = label_z.exp2_().mul_(factor) - terms.hard[:, None]
            z.scatter_(1, target, label_grad)
            strip.add_transposed(
                every.flatten(1), 0, wide_grad[band].flatten(1)
            )
        return loss

    def is_first(self, z: Tensor, top: Tensor, target: Tensor) -> Tensor:
        """Where the target is the first class of the largest logit.

        Several times as fast as ``argmax``, which is not vectorised.
        """
        mark = torch.empty_like(z)
        torch.ge(z, top, out=mark)
        return mark.mul_(self.rank).amax(1) + target == self.classes

    def add_gradient(self, narrow: Tensor, out: Tensor) -> None:
        """Add ``(K, C, w)`` to ``out`` ``(C, K, w)``."""
        by_class = narrow.transpose(0, 1)
        out += by_class[: self.classes]
        if self.share is not None:
            out.addcmul_(self.share[:, None, None], by_class[self.classes])


def strip_cross_entropy(
    logits: Tensor,
    size: tuple[int, int],
    align_corners: bool,
    targets: PixelTargets,
    *,
    with_grad: bool,
    with_map: bool = False,
    kind: type[StripPass] = StripPass,
) -> PassResult:
    """Loss, hits and gradient of resized logits, without the resized logits.

    Args:
        logits: ``(N, C, h, w)``, float.
        size: ``(H, W)``.
        align_corners: As in ``F.interpolate``.
        targets: Of all pixels; their dtype is the one of the work.
        with_grad: Whether to compute the gradient.
        with_map: Whether to return the loss of each pixel.
        kind: What works on the strips.

    Note:
        Needs a dozen MiB besides its results. Does not synchronise.
    """
    work = kind(logits, size, align_corners, targets)
    grad = loss = None
    if with_grad:
        grad = torch.zeros(
            logits.shape, dtype=targets.dtype, device=logits.device
        )
    if with_map:
        loss = torch.empty(
            targets.label.shape, dtype=targets.dtype, device=logits.device
        )
    work.run(grad, loss)
    total = torch.stack(work.sums).sum()
    for value in (total, loss):
        if value is not None:
            value.masked_fill_(value > TOO_LARGE, math.inf)
    return PassResult(total, torch.stack(work.hits).sum(), grad, loss)
