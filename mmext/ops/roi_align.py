"""RoIAlign: bilinear samples of a region, averaged in each bin.

On a CPU kernels of numba compute the mean, on a GPU those of torchvision, if
they are installed. The maximum (``pool_mode='max'``), which no config of mmdet
or mmseg asks for, is left to compiled mmcv.

Shape letters: N images, C channels, H W map size, R regions, P Q bins along y
and x, B bins of several regions, K pixels that a bin reads.

Source: He et al., Mask R-CNN, https://arxiv.org/abs/1703.06870
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..utils.tensors import exact, wide_type, widen
from ._rows import add_rows_, sum_rows
from .choice import backend_of, uses_numba


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
        position = start + step[:bins, None] * width
        position = position + (step[:most] + 0.5) * width / count.clamp(min=1)
        return position, step[:most] < count

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
    if not aligned:
        size = size.clamp(min=1)
    width = size / size.new_tensor(bins)
    count = torch.full_like(width, sampling_ratio)
    if sampling_ratio <= 0:
        count = width.ceil()
    return SampleGrid(start, width, count.long())


def interpolate_axis(
    position: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Neighbouring pixels of positions along one axis.

    ``position``: Positions in map pixels, any shape. Returns the lower and the
    upper pixel, int64 in [0, size), and their weights; both weights are 0 more
    than a pixel outside the map. Positions outside it by less read its border.
    """
    inside = (position >= -1) & (position <= size)
    position = position.clamp(0, size - 1)
    low = position.floor()
    far = (position - low) * inside
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
    position, exists = grid.positions(axis, bins)
    low, high, near, far = interpolate_axis(position, size)
    scale = exists.to(position) / grid.count[:, axis, None, None].clamp(min=1)
    near, far = near * scale, far * scale
    if not position.shape[-1]:
        return low.new_zeros(*position.shape[:2], 1), position.new_zeros(
            *position.shape[:2], 1
        )
    # Only samples that exist and are inside the map decide the window.
    counts = near + far > 0
    first = low.masked_fill(~counts, size - 1).amin(-1, keepdim=True)
    last = high.masked_fill(~counts, 0).amax(-1, keepdim=True)
    reach = int((last - first).max()) + 1
    if reach > 2 * position.shape[-1]:
        return torch.cat([low, high], -1), torch.cat([near, far], -1)
    reach = max(reach, 1)
    weight = position.new_zeros(*position.shape[:2], reach)
    for pixel, part in ((low, near), (high, far)):
        weight.scatter_add_(2, (pixel - first).clamp(0, reach - 1), part)
    # Unused entries point at a pixel of the window and not at a neighbour,
    # whose value, if infinite, would spoil the sum even with weight 0.
    offset = torch.arange(reach, device=position.device)
    return first + offset * (weight != 0), weight


_AVERAGE = 1  # pool_mode of the compiled operator

# Terms of all sums that are worked on at once.
_TERMS = 1 << 20


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
    pixels = np.flatnonzero(flat)
    image_of, pixels = np.divmod(pixels, flat.shape[1])
    # Of many large maps, memory that nothing is written to is not taken.
    row_of = np.empty(used.shape, np.int32)
    row_of[used] = np.arange(len(pixels)) - rows[image_of]
    regions = image.argsort(kind='stable')
    starts = np.searchsorted(image[regions], np.arange(images + 1))
    taps = [regions, starts, pixels, rows, row_of, *axes[0], *axes[1]]
    return taps, images * -(-channels // kernels.CHANNELS)


def _check(rois: Tensor, images: int, pool_mode: int, aligned: bool) -> None:
    """Refuse a maximum, and regions that would be read outside of memory."""
    if pool_mode != _AVERAGE:
        raise ValueError(
            "pool_mode must be 'avg' with the PyTorch backend of mmext, got "
            "'max'; set pool_mode='avg' of RoIAlign, or build mmcv with its "
            'compiled operators'
        )
    image = rois[:, 0]
    good = rois.isfinite().all(1) & (image >= 0) & (image < images)
    if aligned:
        good &= (rois[:, 3:] >= rois[:, 1:3]).all(1)
    # The one place where a GPU is waited for.
    if not good.all():
        first = int(good.logical_not().nonzero()[0])
        raise ValueError(
            f'rois must be finite with an image index in [0, {images})'
            f'{", and not end before they begin" * aligned}, got '
            f'{rois[first].tolist()} at index {first}'
        )


def _uses_torchvision(tensor: Tensor) -> bool:
    """Not where results must not vary: PyTorch refuses its gradient there."""
    return (
        backend_of('roi_align', tensor.device.type) == 'torchvision'
        and not torch.are_deterministic_algorithms_enabled()
    )


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

    ``input``: ``(N, C, H, W)``; ``output``: filled, ``(R, C, P, Q)``; a bin
    without samples, of a region without area, is zero. ``aligned_height`` is
    P, ``aligned_width`` Q, ``pool_mode`` 1 for the mean of the samples; the
    buffers ``argmax_y`` and ``argmax_x`` are for the maximum. For all others
    see :func:`sample_grid`.

    Raises:
        ValueError: If the maximum is asked for, or a region is not finite,
            of no image, or ends before it begins.
    """
    _check(rois, len(input), pool_mode, aligned)
    bins = aligned_height, aligned_width
    rois = rois.to(wide_type(input))
    if _uses_torchvision(input):
        pooled = torch.ops.torchvision.roi_align(
            *(widen(input), rois, spatial_scale, *bins),
            *(sampling_ratio, aligned),
        )
        output.copy_(pooled)
        return
    grid = sample_grid(rois, bins, spatial_scale, sampling_ratio, aligned)
    if uses_numba(input.device):
        from ..utils.jit import run_rows
        from ._roi_align_kernels import average

        taps, count = _taps_of_regions(input.shape, rois, grid, bins)
        maps, wide = widen(input).contiguous(), widen(output).contiguous()
        run_rows(average, [maps.numpy(), *taps, wide.numpy()], count)
        output.copy_(wide)
        return
    table = widen(input).permute(0, 2, 3, 1).flatten(0, 2).contiguous()
    rows = table.new_empty(len(rois), *bins, table.shape[1])
    terms = _average_terms(input.shape, rois, grid, bins)
    for pick, index, weight in terms:
        pooled = sum_rows(table, index, weight)
        rows[pick] = pooled.view(len(pick), *bins, -1)
    output.copy_(rows.permute(0, 3, 1, 2))


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
    if _uses_torchvision(grad):
        grad_input += torch.ops.torchvision._roi_align_backward(
            *(grad, rois, spatial_scale, *bins, *grad_input.shape),
            *(sampling_ratio, aligned),
        )
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
    images, channels, *size = grad_input.shape
    maps = grad.new_zeros(images, *size, channels)
    table, rows = maps.flatten(0, 2), grad.permute(0, 2, 3, 1).flatten(1, 2)
    terms = _average_terms(grad_input.shape, rois, grid, bins)
    for pick, index, weight in terms:
        add_rows_(table, index, weight, rows[pick].flatten(0, 1))
    grad_input += maps.permute(0, 3, 1, 2)
