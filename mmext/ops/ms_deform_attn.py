"""Multi-scale deformable attention.

:func:`multi_scale_deform_attn` takes the first back end that there is for a
device. mmcv runs its own PyTorch function on the CPU and the operators named
after its compiled ones on a GPU; called directly, they work on both. PyTorch
samples one level after the other and adds them up, which bounds the memory.

Shape letters: N images, S pixels of all levels, M heads, D channels of a
head, Q queries, L levels, P points.

Source: Zhu et al., Deformable DETR, https://arxiv.org/abs/2010.04159
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..utils.tensors import exact, is_traced_for_others, recomputed, widen
from ..utils.torch_compat import custom_op
from .choice import backend_of


def _arrays(
    value: Tensor, shapes: Tensor, starts: Tensor, *others: Tensor
) -> list[np.ndarray]:
    """What the kernels take; levels that are not in ``value`` are refused."""
    from ._deform_attn_kernels import SAMPLES

    shapes, starts = shapes.long(), starts.long()
    ends = starts + shapes.prod(1)
    if len(shapes) and (
        int(ends.max()) > value.shape[1] or int(starts.min()) < 0
    ):
        raise ValueError(
            f'value must have the {int(ends.max())} pixels that '
            f'value_spatial_shapes {shapes.tolist()} and '
            f'value_level_start_index {starts.tolist()} ask for, got '
            f'{value.shape[1]}'
        )
    images, pixels, heads, dims = value.shape
    levels, points = others[1].shape[3:]
    if levels * points > SAMPLES:
        raise ValueError(
            f'sampling_locations must be at most {SAMPLES} for a query and a '
            f'head, got {points} in each of {levels} levels; set MMEXT_OPS='
            'pytorch for more'
        )
    # The pixels of a head next to each other: half the time of the kernels.
    by_head = others[0].new_zeros(images, heads, pixels, _padded(dims))
    by_head[..., :dims] = value.detach().transpose(1, 2)
    tensors = by_head, shapes, starts, *others
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def _padded(dims: int) -> int:
    """Channels of a head, filled up to what a kernel works on at once."""
    from ._deform_attn_kernels import LANES

    return -(-dims // LANES) * LANES


@custom_op('mmext::deform_attn')
def _attend(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    location: Tensor,
    weight: Tensor,
) -> Tensor:
    from ..utils.jit import run_rows
    from ._deform_attn_kernels import forward

    images, _, heads, dims = value.shape
    arrays = _arrays(value, shapes, starts, location, weight)
    shape = images, location.shape[1], heads, _padded(dims)
    out = location.new_zeros(shape)
    if value.numel():
        run_rows(forward, [*arrays, out.numpy()], images * heads)
    return out[..., :dims].flatten(2).to(value.dtype)


@custom_op('mmext::deform_attn_backward')
def _attend_backward(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    location: Tensor,
    weight: Tensor,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    from ..utils.jit import run_rows
    from ._deform_attn_kernels import backward

    images, pixels, heads, dims = value.shape
    given = location.new_zeros(images, location.shape[1], heads, _padded(dims))
    given[..., :dims] = grad_out.view(images, -1, heads, dims)
    arrays = _arrays(value, shapes, starts, location, weight, given)
    by_head = location.new_zeros(images, heads, pixels, given.shape[-1])
    grads = location.new_zeros(location.shape), weight.new_zeros(weight.shape)
    arrays += [grad.numpy() for grad in (by_head, *grads)]
    if value.numel():
        run_rows(backward, arrays, images * heads)
    grad_value = value.new_empty(value.shape)
    return grad_value.copy_(by_head[..., :dims].transpose(1, 2)), *grads


@_attend.register_fake
def _(value: Tensor, *others: Tensor) -> Tensor:
    location = others[2]
    images, _, heads, dims = value.shape
    return value.new_empty(images, location.shape[1], heads * dims)


@_attend_backward.register_fake
def _(*inputs: Tensor) -> tuple[Tensor, ...]:
    value, _, _, location, weight, _ = inputs
    return tuple(x.new_empty(x.shape) for x in (value, location, weight))


def _keep(ctx: object, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: object, grad_out: Tensor) -> tuple:
    value, location, weight = _attend_backward(*ctx.saved_tensors, grad_out)
    return value, None, None, location, weight


_attend.register_autograd(_differentiate, setup_context=_keep)


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
    shapes: Tensor,
    starts: Tensor,
    sizes: Sequence[tuple[int, int]] | None = None,
) -> Iterator[tuple[int, tuple[int, int], slice]]:
    """Number, size and pixels of every level."""
    if sizes is None:
        levels = zip(shapes.tolist(), starts.tolist())
    else:
        areas = (height * width for height, width in sizes)
        levels = zip(sizes, accumulate(areas, initial=0))
    for level, ((height, width), start) in enumerate(levels):
        yield level, (height, width), slice(start, start + height * width)


def _attend_by_levels(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    location: Tensor,
    weight: Tensor,
    sizes: Sequence[tuple[int, int]] | None = None,
) -> Tensor:
    images, _, heads, dims = value.shape
    out = value.new_zeros(images, location.shape[1], heads * dims)
    attend = attend_level
    if value.is_cuda:
        # Memory is scarce there: each level is sampled again going back.
        attend = partial(recomputed, attend_level)
    for level, size, pixels in _levels(shapes, starts, sizes):
        out += attend(
            value[:, pixels],
            size,
            location[:, :, :, level],
            weight[:, :, :, level],
        )
    return out


def _attend_compiled(value: Tensor, *others: Tensor) -> Tensor:
    from mmcv.ops.multi_scale_deform_attn import (
        MultiScaleDeformableAttnFunction,
    )

    inputs = [x.contiguous() for x in (value, *others)]
    # The images of one call of the kernel; all must be as many.
    return MultiScaleDeformableAttnFunction.apply(*inputs, max(len(value), 1))


def _attend_deformops(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    location: Tensor,
    weight: Tensor,
) -> Tensor:
    from deformops.registry import msda

    inputs = value, shapes, starts, location, weight
    # Without queries its kernels give a result without a gradient.
    return msda(*inputs) if weight.numel() else _attend_by_levels(*inputs)


_ATTEND = {
    'numba': _attend,
    'deformops': _attend_deformops,
    'compiled': _attend_compiled,
    'pytorch': _attend_by_levels,
}


def _backend(device: str) -> str:
    """Back end for a kind of device; a compiler does not look inside."""
    return backend_of('ms_deform_attn', device)


# What torch.compiler.assume_constant_result does, which would load the
# compiler, for three seconds, into each process that imports this module.
_backend._dynamo_marked_constant = True


def _own_backend(value: Tensor) -> str:
    """Back end of the operators that stand in for the compiled ones."""
    backend = _backend(value.device.type)
    return 'pytorch' if backend == 'compiled' else backend


def multi_scale_deform_attn(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    level_sizes: Sequence[tuple[int, int]] | None = None,
) -> Tensor:
    """Attend to the sampled points of all levels.

    By the first back end of ``docs/operators.md`` that there is for the
    device. Gradients are once differentiable, with PyTorch twice.

    Args:
        value: ``(N, S, M, D)``, of any floating type.
        value_spatial_shapes: ``(L, 2)``, integer, H W of each level.
        value_level_start_index: ``(L,)``, integer, first pixel of each level.
        sampling_locations: ``(N, Q, M, L, P, 2)``, float64 if ``value`` is,
            else float32, in which the samples are added up; x y, where each
            map spans [0, 1]; a sample outside the map is zero, and one that
            is not finite NaN.
        attention_weights: ``(N, Q, M, L, P)``, the type of the locations.
        level_sizes: ``value_spatial_shapes`` as ``L`` pairs of Python
            integers, for levels that follow each other without gaps. PyTorch
            then reads nothing from the device and runs on the meta device;
            ``torch.export`` and ``torch.jit.trace`` then take PyTorch, and
            keep sizes variable.

    Returns:
        ``(N, Q, M * D)``, the type of ``value``.

    Raises:
        ValueError: If ``value`` lacks pixels of a level, or the environment
            variable ``MMEXT_OPS`` names no back end.
        ImportError: If the back end that was chosen is not there.
    """
    backend = _backend(value.device.type)
    if level_sizes is not None and is_traced_for_others():
        backend = 'pytorch'
    attend = _ATTEND[backend]
    if backend == 'pytorch':
        attend = partial(attend, sizes=level_sizes)
    out = attend(
        value if backend == 'numba' else widen(value),
        value_spatial_shapes,
        value_level_start_index,
        sampling_locations,
        attention_weights,
    )
    return out.to(value.dtype)


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

    As :func:`multi_scale_deform_attn`, for tensors of one type;
    ``im2col_step``, the images of a call of the compiled kernel, has no
    effect.
    """
    attend = _ATTEND[_own_backend(value)]
    out = attend(
        widen(value),
        value_spatial_shapes,
        value_level_start_index,
        widen(sampling_locations),
        widen(attention_weights),
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
    ``grad_output`` is ``(N, Q, M * D)``; the other gradients are filled, have
    the shapes of what they are of, and ``grad_value`` is zero at first. All
    other arguments are those of the forward call.
    """
    inputs = value, sampling_locations, attention_weights
    grads = grad_value, grad_sampling_loc, grad_attn_weight
    levels = value_spatial_shapes, value_level_start_index
    backend = _own_backend(value)
    if backend != 'pytorch':
        leaves = [widen(x).detach().requires_grad_() for x in inputs]
        if backend == 'numba':
            values = _attend_backward(
                leaves[0], *levels, *leaves[1:], widen(grad_output)
            )
        else:
            with torch.enable_grad():
                out = _ATTEND[backend](leaves[0], *levels, *leaves[1:])
            values = torch.autograd.grad(out, leaves, widen(grad_output))
        for into, result in zip(grads, values):
            into.copy_(result)
        return
    for level, size, pixels in _levels(*levels):
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
        values = torch.autograd.grad(out, leaves, widen(grad_output))
        for into, at, result in zip(grads, where, values):
            into[at] = result
