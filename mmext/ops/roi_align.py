"""RoIAlign: bilinear samples of a region, averaged or maximised in each bin.

On a CPU kernels of numba compute the mean, where it is installed.

Shape letters: N images, C channels, H W map size, R regions, P Q bins along y
and x, B bins of several regions, K pixels that a bin reads.

Source: He et al., Mask R-CNN, https://arxiv.org/abs/1703.06870
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..utils.precision import exact, wide_type, widen
from ._rois import PixelTable, check_rois
from ._rows import add_rows_, sum_rows
from .choice import uses_numba


class SampleGrid(NamedTuple):
    """Sampling of every region; the last axis of each tensor is y, x."""

    start: Tensor
    """Where the regions begin on the map, ``(R, 2)``."""

    width: Tensor
    """Size of a bin in map pixels, ``(R, 2)``."""

    count: Tensor
    """Samples of a bin along each axis, ``(R, 2)``, int64; may be 0."""

    def positions(self, axis: int, bins: int) -> tuple[Tensor, Tensor]:
        """Sample positions along one axis.

        Returns positions in map pixels, ``(R, P, G)``, and which of them
        exist, ``(R, 1, G)``; G is the largest count of all regions.
        """
        start, width, count = (x[:, axis, None, None] for x in self)
        most = int(count.max()) if len(count) else 0
        step = torch.arange(max(bins, most), device=start.device)
        # In the order of operations of the compiled kernels: what is on the
        # border decides by its last bit.
        place = start + step[:bins, None] * width
        place = place + (step[:most] + 0.5) * width / count.clamp(min=1)
        return place, step[:most] < count

    def pick(self, index: Tensor) -> 'SampleGrid':
        """The same for a selection of the regions."""
        return SampleGrid(*(x[index] for x in self))


def sample_grid(
    rois: Tensor,
    bins: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> SampleGrid:
    """Lay the sampling grid over every region.

    Args:
        rois: ``(R, 5)``: image, x1 y1 x2 y2 in pixels of the image.
        bins: Bins along y and x.
        spatial_scale: Map pixels per image pixel.
        sampling_ratio: Samples of a bin along each axis; 0 takes one per
            started map pixel.
        aligned: Whether pixel centres lie at half-integers. Where not, a
            region is at least one map pixel wide and high.

    Returns:
        The grid.
    """
    shift = 0.5 if aligned else 0.0
    corners = rois[:, 1:] * spatial_scale - shift
    start, end = corners[:, [1, 0]], corners[:, [3, 2]]
    size = end - start
    if aligned and (size < 0).any():
        first = int((size < 0).any(1).nonzero()[0])
        raise ValueError(
            'rois must not end before they begin, got '
            f'{rois[first].tolist()} at index {first}'
        )
    if not aligned:
        size = size.clamp(min=1)
    width = size / size.new_tensor(bins)
    count = torch.full_like(width, sampling_ratio)
    if sampling_ratio <= 0:
        count = width.ceil()
    return SampleGrid(start, width, count.long())


def interpolate_axis(
    place: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Neighbouring pixels of positions along one axis.

    ``place``: Positions in map pixels, any shape. Returns the lower and the
    upper pixel, int64 in [0, size), and their weights; both weights are 0 more
    than a pixel outside the map. Positions outside it by less read its border.
    """
    inside = (place >= -1) & (place <= size)
    place = place.clamp(0, size - 1)
    low = place.floor()
    far = (place - low) * inside
    near = inside.to(far) - far
    low = low.long()
    return low, (low + 1).clamp_(max=size - 1), near, far


def axis_taps(
    grid: SampleGrid, axis: int, bins: int, size: int
) -> tuple[Tensor, Tensor]:
    """Pixels that every bin averages along one axis.

    Samples of a bin that are less than a pixel apart share pixels, which are
    then listed once, with their summed weight.

    Returns pixels, ``(R, P, K)``, int64 in [0, size), and weights, which add
    up to 1 for a bin whose samples are all inside the map.
    """
    place, exists = grid.positions(axis, bins)
    low, high, near, far = interpolate_axis(place, size)
    scale = exists.to(place) / grid.count[:, axis, None, None].clamp(min=1)
    near, far = near * scale, far * scale
    if not place.shape[-1]:
        return low.new_zeros(*place.shape[:2], 1), place.new_zeros(
            *place.shape[:2], 1
        )
    # Only samples that exist and are inside the map decide the window.
    counts = near + far > 0
    first = low.masked_fill(~counts, size - 1).amin(-1, keepdim=True)
    last = high.masked_fill(~counts, 0).amax(-1, keepdim=True)
    reach = int((last - first).max()) + 1
    if reach > 2 * place.shape[-1]:
        return torch.cat([low, high], -1), torch.cat([near, far], -1)
    reach = max(reach, 1)
    weight = place.new_zeros(*place.shape[:2], reach)
    for pixel, part in ((low, near), (high, far)):
        weight.scatter_add_(2, (pixel - first).clamp(0, reach - 1), part)
    # Unused entries point at a pixel of the window and not at a neighbour,
    # whose value, if infinite, would spoil the sum even with weight 0.
    offset = torch.arange(reach, device=place.device)
    return first + offset * (weight != 0), weight


MAX, AVERAGE = range(2)

# Terms of all sums, and pooled values, that are worked on at once.
_TERMS = 1 << 20
_VALUES = 1 << 22


def _pixel_table(
    shape: torch.Size, rois: Tensor, grid: SampleGrid, bins: tuple[int, int]
) -> PixelTable:
    """Pixels that the regions read, and a few around them."""
    limit = torch.tensor(shape[2:], device=rois.device) - 1
    end = grid.start + grid.width * grid.width.new_tensor(bins)
    first = (grid.start.floor().long() - 1).clamp(min=0).minimum(limit)
    last = (end.floor().long() + 2).clamp(min=0).minimum(limit)
    return PixelTable(shape, rois[:, 0].long(), first, last)


def _chunks(grid: SampleGrid, values_per_term: int) -> Iterator[Tensor]:
    """Regions whose bins read about as many pixels along either axis.

    All sums of a chunk have as many terms as its longest one.
    """
    reach = torch.minimum(2 * grid.count, grid.width.long() + 3).clamp(min=1)
    power = reach.double().log2().ceil().long()
    key = power[:, 0] * 64 + power[:, 1]
    for k in key.unique().tolist():
        group = (key == k).nonzero()[:, 0]
        terms = int(reach[group].amax(0).prod()) * values_per_term
        yield from group.split(max(_TERMS // terms, 1))


def _average_terms(
    shape: torch.Size,
    rois: Tensor,
    grid: SampleGrid,
    bins: tuple[int, int],
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Regions, pixels ``(B, K)`` and weights ``(B, K)``, chunk by chunk."""
    _, _, height, width = shape
    for pick in _chunks(grid, bins[0] * bins[1]):
        part = grid.pick(pick)
        y, y_weight = axis_taps(part, 0, bins[0], height)
        x, x_weight = axis_taps(part, 1, bins[1], width)
        y = y + rois[pick, 0].long()[:, None, None] * height
        pixel = y[:, :, None, :, None] * width + x[:, None, :, None, :]
        weight = y_weight[:, :, None, :, None] * x_weight[:, None, :, None]
        yield (
            pick,
            pixel.flatten(3).flatten(0, 2),
            weight.flatten(3).flatten(0, 2),
        )


def _taps_of_regions(
    shape: torch.Size,
    rois: Tensor,
    grid: SampleGrid,
    bins: tuple[int, int],
) -> tuple[list[np.ndarray], int]:
    """What the kernels take beside maps and bins, and their rows."""
    from . import _roi_align_kernels as kernels

    # Tensors while PyTorch traces.
    images, channels, *size = map(int, shape)
    image = rois[:, 0].long().numpy()
    samples = int(grid.count.max()) if len(rois) else 0
    axes = []
    for axis in range(2):
        start, width, count = (x[:, axis].contiguous().numpy() for x in grid)
        shape = len(rois), bins[axis], max(2 * samples, 1)
        axes.append(
            [
                np.empty(shape, np.int64),
                np.empty(shape, start.dtype),
                np.empty(shape[:2], np.int64),
            ]
        )
        kernels.find_taps(start, width, count, size[axis], *axes[axis])
    (y, _, y_length), (x, _, x_length) = axes
    used = np.zeros((images, *size), bool)
    kernels.mark(image, y, y_length, x, x_length, used)
    flat = used.reshape(images, -1)
    rows = np.concatenate([[0], flat.sum(1).cumsum()])
    pixels = np.flatnonzero(flat) % flat.shape[1]
    row_of = (flat.cumsum(1) - 1).reshape(used.shape)
    regions = image.argsort(kind='stable')
    starts = np.searchsorted(image[regions], np.arange(images + 1))
    taps = [regions, starts, pixels, rows, row_of, *axes[0], *axes[1]]
    return taps, images * -(-channels // kernels.CHANNELS)


def _max_of_samples(
    table: Tensor,
    pixels: PixelTable,
    image: Tensor,
    grid: SampleGrid,
    bins: tuple[int, int],
    size: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum, and y and x of its sample: three ``(R, P, Q, C)``."""
    (y, y_exists), (x, x_exists) = (
        grid.positions(axis, bins[axis]) for axis in (0, 1)
    )
    rows = interpolate_axis(y, size[0])
    cols = interpolate_axis(x, size[1])
    best = table.new_full((len(image), *bins, table.shape[1]), -torch.inf)
    best_y, best_x = torch.full_like(best, -1), torch.full_like(best, -1)
    base = (image * size[0] * size[1])[:, None, None, None]
    for i in range(y.shape[-1]):
        top, bottom, above, below = (part[:, :, None, i] for part in rows)
        ys = torch.stack([top, top, bottom, bottom], -1) * size[1] + base
        y_weight = torch.stack([above, above, below, below], -1)
        for j in range(x.shape[-1]):
            left, right, near, far = (part[:, None, :, j] for part in cols)
            index = ys + torch.stack([left, right, left, right], -1)
            weight = y_weight * torch.stack([near, far, near, far], -1)
            index = pixels.rows_of(index.flatten(0, 2))
            value = sum_rows(table, index, weight.flatten(0, 2)).view_as(best)
            exists = y_exists[:, :, None, i] & x_exists[:, :, None, j]
            better = (value > best) & exists[..., None]
            best = torch.where(better, value, best)
            best_y = torch.where(better, y[:, :, None, i, None], best_y)
            best_x = torch.where(better, x[:, None, :, j, None], best_x)
    return best.masked_fill_(best == -torch.inf, 0), best_y, best_x


def _max_backward(
    grad: Tensor, image: Tensor, y: Tensor, x: Tensor, total: Tensor
) -> None:
    """Spread ``(R, C, P, Q)`` gradients to the pixels of ``total``."""
    _, channels, height, width = total.shape
    plane = image[:, None] * channels
    plane = plane + torch.arange(channels, device=image.device)
    plane = (plane * height)[:, :, None, None]
    # The compiled kernels mark with y = -1 what nothing was found for.
    grad = grad.masked_fill(y == -1, 0)
    rows, cols = interpolate_axis(y, height), interpolate_axis(x, width)
    for i in range(2):
        for j in range(2):
            pixel = (plane + rows[i]) * width + cols[j]
            part = grad * rows[2 + i] * cols[2 + j]
            total.view(-1).index_add_(0, pixel.flatten(), part.flatten())


@exact
def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Fill ``output`` with the pooled regions.

    Args:
        input: ``(N, C, H, W)``.
        rois: ``(R, 5)``: image, x1 y1 x2 y2 in pixels of the image.
        output: Filled; ``(R, C, P, Q)``. A bin without samples, of a region
            without area, is zero.
        argmax_y: In mode 0 filled with y of the largest sample, -1 where
            there is none; ``(R, C, P, Q)``. Not used in mode 1.
        argmax_x: The same for x.
        aligned_height: P.
        aligned_width: Q.
        spatial_scale: Map pixels per image pixel.
        sampling_ratio: Samples of a bin along each axis; 0 takes one per
            started map pixel.
        pool_mode: 0 for the maximum of the samples, 1 for their mean.
        aligned: Whether pixel centres lie at half-integers.
    """
    check_rois(rois, len(input))
    bins = aligned_height, aligned_width
    rois = rois.to(wide_type(input))
    grid = sample_grid(rois, bins, spatial_scale, sampling_ratio, aligned)
    if pool_mode == AVERAGE and uses_numba(input.device):
        from ..utils.jit import run_rows
        from ._roi_align_kernels import average

        taps, count = _taps_of_regions(input.shape, rois, grid, bins)
        maps, wide = widen(input).contiguous(), widen(output).contiguous()
        run_rows(average, [maps.numpy(), *taps, wide.numpy()], count)
        output.copy_(wide)
        return
    pixels = _pixel_table(input.shape, rois, grid, bins)
    table = pixels.read(input)
    if pool_mode == AVERAGE:
        rows = table.new_empty(len(rois), *bins, table.shape[1])
        terms = _average_terms(input.shape, rois, grid, bins)
        for pick, index, weight in terms:
            pooled = sum_rows(table, pixels.rows_of(index), weight)
            rows[pick] = pooled.view(len(pick), *bins, -1)
        output.copy_(rows.permute(0, 3, 1, 2))
        return
    order = grid.count.prod(1).argsort()
    values = max(bins[0] * bins[1] * input.shape[1], 1)
    for pick in order.split(max(_VALUES // values, 1)):
        results = _max_of_samples(
            table,
            pixels,
            rois[pick, 0].long(),
            grid.pick(pick),
            bins,
            input.shape[2:],
        )
        for into, result in zip((output, argmax_y, argmax_x), results):
            into[pick] = result.permute(0, 3, 1, 2).to(into.dtype)


@exact
def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Add the gradient of every pooled value to the pixels it came from.

    ``grad_output``: ``(R, C, P, Q)``; ``grad_input``: ``(N, C, H, W)``;
    changed in place.
    """
    bins = aligned_height, aligned_width
    grad = widen(grad_output)
    rois = rois.to(grad.dtype)
    if pool_mode == MAX:
        total = grad.new_zeros(grad_input.shape)
        _max_backward(
            grad, rois[:, 0].long(), widen(argmax_y), widen(argmax_x), total
        )
        grad_input += total.to(grad_input.dtype)
        return
    grid = sample_grid(rois, bins, spatial_scale, sampling_ratio, aligned)
    if uses_numba(grad.device):
        from ..utils.jit import run_rows
        from ._roi_align_kernels import spread

        taps, count = _taps_of_regions(grad_input.shape, rois, grid, bins)
        wide = widen(grad_input).contiguous()
        grads = [grad.contiguous().numpy(), *taps, wide.numpy()]
        run_rows(spread, grads, count)
        grad_input.copy_(wide)
        return
    pixels = _pixel_table(grad_input.shape, rois, grid, bins)
    table = grad.new_zeros(len(pixels), grad.shape[1])
    rows = grad.permute(0, 2, 3, 1).flatten(1, 2)
    terms = _average_terms(grad_input.shape, rois, grid, bins)
    for pick, index, weight in terms:
        add_rows_(
            table, pixels.rows_of(index), weight, rows[pick].flatten(0, 1)
        )
    pixels.add_to_(grad_input, table)
