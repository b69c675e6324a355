"""Where RoIAlign samples a feature map, and with which weights.

Bilinear weights are products of a weight along y and one along x, and so is
the border rule, so each axis is worked out alone.

Shape letters: R regions, P bins along one axis, G samples of a bin along one
axis, K pixels that a bin reads along one axis.

Source: He et al., Mask R-CNN, https://arxiv.org/abs/1703.06870; the half
pixel shift of ``aligned`` is that of Detectron2.
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ['SampleGrid', 'axis_taps', 'interpolate_axis', 'sample_grid']


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

        Args:
            axis: 0 for y, 1 for x.
            bins: P.

        Returns:
            Positions in map pixels, ``(R, P, G)``, and which of them exist,
            ``(R, 1, G)``; G is the largest count of all regions.
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

    Raises:
        ValueError: If ``aligned`` and a region ends before it begins.
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

    Args:
        place: Positions in map pixels, any shape.
        size: Pixels of the map along this axis.

    Returns:
        The lower and the upper pixel, int64 in [0, size), and their weights;
        both weights are 0 more than a pixel outside the map. Positions
        outside it by less read its border.

    Examples:
        >>> low, high, near, far = interpolate_axis(torch.tensor([2.25]), 4)
        >>> low, high, near, far
        (tensor([2]), tensor([3]), tensor([0.7500]), tensor([0.2500]))
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

    Args:
        grid: The regions; at least one.
        axis: 0 for y, 1 for x.
        bins: P.
        size: Pixels of the map along this axis.

    Returns:
        Pixels, ``(R, P, K)``, int64 in [0, size), and weights, which add up
        to 1 for a bin whose samples are all inside the map.
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
