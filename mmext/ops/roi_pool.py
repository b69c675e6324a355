"""RoIPool: the maximum of whole pixels in each bin of a region.

Shape letters: N images, C channels, H W map size, R regions, P Q bins.

Source: Girshick, Fast R-CNN, https://arxiv.org/abs/1504.08083
"""

import torch
from torch import Tensor

from ..utils.precision import exact, widen
from ._rois import check_rois

__all__ = [
    'bin_edges',
    'roi_pool_backward',
    'roi_pool_forward',
]

# Pooled values, (R, P, Q, C), that are worked on at once: few enough for the
# cache of a CPU.
_CHUNK = 1 << 18


def bin_edges(
    low: Tensor, high: Tensor, bins: int, size: int
) -> tuple[Tensor, Tensor]:
    """First pixel of every bin along one axis, and the one after its last.

    ``low``: ``(R,)``, where the regions begin on the map; ``high``: ``(R,)``,
    where they end. Returns two ``(R, P)``, int64 in [0, size]; a bin may be
    empty.
    """
    width = ((high - low) / bins)[:, None]
    step = torch.arange(bins, device=low.device)
    first = (step * width + low[:, None]).floor()
    last = ((step + 1) * width + low[:, None]).ceil()
    return first.clamp(0, size).long(), last.clamp(0, size).long()


def _pool(table: Tensor, rows: tuple, cols: tuple, width: int) -> tuple:
    """Maximum and its pixel: two ``(R, P, Q, C)`` from ``(N*H*W, C)``."""
    top, bottom = (edge[:, :, None] for edge in rows[:2])
    left, right = (edge[:, None, :] for edge in cols)
    first_pixel = rows[2][:, None, None]
    size = (bottom - top).clamp(min=0), (right - left).clamp(min=0)
    shape = (*torch.broadcast_shapes(top.shape, left.shape), table.shape[1])
    best = table.new_full(shape, -torch.inf)
    place = torch.full(shape, -1, dtype=torch.int, device=table.device)
    for dy in range(int(size[0].max())):
        for dx in range(int(size[1].max())):
            inside = ((dy < size[0]) & (dx < size[1]))[..., None]
            pixel = (top + dy) * width + left + dx
            pixel = torch.where(inside[..., 0], pixel, 0)
            found = table[first_pixel + pixel]
            better = inside & (found > best)
            best = torch.where(better, found, best)
            place = torch.where(better, pixel[..., None].int(), place)
    return best.masked_fill_(place < 0, 0), place


@exact
def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Fill ``output`` with the maximum of every bin.

    Args:
        input: ``(N, C, H, W)``.
        rois: ``(R, 5)``: image, x1 y1 x2 y2 in pixels of the image, the last
            pixel included.
        output: Filled; ``(R, C, P, Q)``. An empty bin, and every bin of a
            region without area, is zero.
        argmax: Filled; ``(R, C, P, Q)``, int32, the pixel ``y * W + x`` of
            the maximum, -1 where there is none.
        pooled_height: P.
        pooled_width: Q.
        spatial_scale: Map pixels per image pixel.
    """
    images, channels, height, width = input.shape
    check_rois(rois, images)
    rois = widen(rois)
    table = widen(input.permute(0, 2, 3, 1)).reshape(-1, channels)
    low = rois[:, 1:3] * spatial_scale
    high = (rois[:, 3:] + 1) * spatial_scale
    whole = ((high - low) > 0).all(1)
    rows = bin_edges(low[:, 1], high[:, 1], pooled_height, height)
    cols = bin_edges(low[:, 0], high[:, 0], pooled_width, width)
    # Regions of like size together: a chunk takes as long as its largest bin.
    area = (rows[1] - rows[0]).amax(1) * (cols[1] - cols[0]).amax(1)
    per_roi = max(pooled_height * pooled_width * channels, 1)
    order = torch.where(whole, area, -1).argsort()[(~whole).sum() :]
    argmax.fill_(-1)
    if not len(order):
        return
    for pick in order.split(max(_CHUNK // per_roi, 1)):
        start = rois[pick, 0].long() * (height * width)
        best, place = _pool(
            table,
            (rows[0][pick], rows[1][pick], start),
            (cols[0][pick], cols[1][pick]),
            width,
        )
        output[pick] = best.permute(0, 3, 1, 2).to(output.dtype)
        argmax[pick] = place.permute(0, 3, 1, 2)


@exact
def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Add the gradient of every maximum to the pixel it came from.

    ``grad_output``: ``(R, C, P, Q)``; ``grad_input``: ``(N, C, H, W)``;
    changed in place; ``spatial_scale``: Not needed, the pixels are in
    ``argmax``.
    """
    channels = grad_input.shape[1]
    plane = rois[:, 0].long()[:, None] * channels
    plane = plane + torch.arange(channels, device=rois.device)
    pixel = plane[..., None] * grad_input[0, 0].numel() + argmax.flatten(2)
    found = argmax.flatten(2) >= 0
    total = widen(torch.zeros_like(grad_input)).flatten()
    total.index_add_(0, pixel[found], widen(grad_output.flatten(2)[found]))
    grad_input += total.view_as(grad_input).to(grad_input.dtype)
