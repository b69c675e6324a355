"""Multi-scale deformable attention.

mmcv runs its own PyTorch function on the CPU and these two operators on a
GPU; called directly, they work on both. One level after the other is sampled
and added up, which bounds the memory.

Shape letters: N images, S pixels of all levels, M heads, D channels of a
head, Q queries, L levels, P points.

Source: Zhu et al., Deformable DETR, https://arxiv.org/abs/2010.04159
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..utils.precision import exact, wide_type, widen

__all__ = [
    'attend_level',
    'ms_deform_attn_backward',
    'ms_deform_attn_forward',
]


def attend_level(
    value: Tensor, size: tuple[int, int], location: Tensor, weight: Tensor
) -> Tensor:
    """Sample one feature level and add up its points.

    Args:
        value: ``(N, H*W, M, D)``, the pixels of the level.
        size: ``(H, W)``.
        location: ``(N, Q, M, P, 2)``, x y, where the map spans [0, 1]; a
            sample outside the map is zero.
        weight: ``(N, Q, M, P)``.

    Returns:
        ``(N, Q, M * D)``.
    """
    images, _, heads, dims = value.shape
    maps = value.permute(0, 2, 3, 1).reshape(images * heads, dims, *size)
    grid = (2 * location - 1).transpose(1, 2).flatten(0, 1)
    sampled = F.grid_sample(maps, grid, align_corners=False)
    weight = weight.transpose(1, 2).flatten(0, 1)
    summed = (sampled * weight[:, None]).sum(-1)
    return summed.unflatten(0, (images, heads)).flatten(1, 2).transpose(1, 2)


def _levels(
    shapes: Tensor, starts: Tensor
) -> Iterator[tuple[int, tuple[int, int], slice]]:
    """Number, size and pixels of every level."""
    levels = zip(shapes.tolist(), starts.tolist())
    for level, ((height, width), start) in enumerate(levels):
        yield level, (height, width), slice(start, start + height * width)


@exact
def ms_deform_attn_forward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Attend to the sampled points of all levels.

    Args:
        value: ``(N, S, M, D)``.
        value_spatial_shapes: ``(L, 2)``, integer, H W of each level.
        value_level_start_index: ``(L,)``, integer, first pixel of each level.
        sampling_locations: ``(N, Q, M, L, P, 2)``, x y, where each map spans
            [0, 1]; a sample outside the map is zero.
        attention_weights: ``(N, Q, M, L, P)``.
        im2col_step: Images per call of the compiled kernel; no effect here.

    Returns:
        ``(N, Q, M * D)``, the type of ``value``.
    """
    images, _, heads, dims = value.shape
    size = images, sampling_locations.shape[1], heads * dims
    out = value.new_zeros(size, dtype=wide_type(value))
    levels = _levels(value_spatial_shapes, value_level_start_index)
    for level, size, pixels in levels:
        out += attend_level(
            widen(value[:, pixels]),
            size,
            widen(sampling_locations[:, :, :, level]),
            widen(attention_weights[:, :, :, level]),
        )
    return out.to(value.dtype)


@exact
def ms_deform_attn_backward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Fill the gradients of :func:`ms_deform_attn_forward` in place.

    The pixels are sampled again, so nothing is kept between the two calls.

    Args:
        value: As in the forward call, as are the next four and the last.
        value_spatial_shapes: See above.
        value_level_start_index: See above.
        sampling_locations: See above.
        attention_weights: See above.
        grad_output: ``(N, Q, M * D)``.
        grad_value: Filled; the shape of ``value``, zero at first.
        grad_sampling_loc: Filled; the shape of ``sampling_locations``.
        grad_attn_weight: Filled; the shape of ``attention_weights``.
        im2col_step: See above.
    """
    inputs = value, sampling_locations, attention_weights
    grads = grad_value, grad_sampling_loc, grad_attn_weight
    levels = _levels(value_spatial_shapes, value_level_start_index)
    for level, size, pixels in levels:
        of_level = (..., level, slice(None))
        where = (
            (slice(None), pixels),
            (*of_level, slice(None)),
            of_level,
        )
        leaves = [
            widen(x[at]).detach().requires_grad_()
            for x, at in zip(inputs, where)
        ]
        with torch.enable_grad():
            out = attend_level(leaves[0], size, *leaves[1:])
        found = torch.autograd.grad(out, leaves, widen(grad_output))
        for into, at, result in zip(grads, where, found):
            into[at] = result
