"""RoIAlign: bilinear samples of a region, averaged or maximised in each bin.

Shape letters: N images, C channels, H W map size, R regions, P Q bins along y
and x, B bins of several regions, K pixels that a bin reads.

Source: He et al., Mask R-CNN, https://arxiv.org/abs/1703.06870
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ._precision import exact, wide_type, widen
from ._roi_samples import SampleGrid, axis_taps, interpolate_axis, sample_grid
from ._rois import PixelTable, check_rois
from ._rows import add_rows_, sum_rows

__all__ = ['roi_align_backward', 'roi_align_forward']

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

    Raises:
        ValueError: If a region is not finite or on an image that is not in
            the batch, or if ``aligned`` and it ends before it begins.
    """
    check_rois(rois, len(input))
    bins = aligned_height, aligned_width
    rois = rois.to(wide_type(input))
    grid = sample_grid(rois, bins, spatial_scale, sampling_ratio, aligned)
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

    Args:
        grad_output: ``(R, C, P, Q)``.
        rois: As in the forward call, as are the last six.
        argmax_y: As the forward call filled it.
        argmax_x: As the forward call filled it.
        grad_input: ``(N, C, H, W)``; changed in place.
        aligned_height: See above.
        aligned_width: See above.
        spatial_scale: See above.
        sampling_ratio: See above.
        pool_mode: See above.
        aligned: See above.
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
    pixels = _pixel_table(grad_input.shape, rois, grid, bins)
    table = grad.new_zeros(len(pixels), grad.shape[1])
    rows = grad.permute(0, 2, 3, 1).flatten(1, 2)
    terms = _average_terms(grad_input.shape, rois, grid, bins)
    for pick, index, weight in terms:
        add_rows_(
            table, pixels.rows_of(index), weight, rows[pick].flatten(0, 1)
        )
    pixels.add_to_(grad_input, table)
