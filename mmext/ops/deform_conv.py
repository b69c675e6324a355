"""Deformable convolution, plain (v1) and modulated (v2).

The convolution is a weighted sum of displaced pixels followed by one matrix
product per group. Output pixels are worked on in chunks, so the sampled
columns never exist as a whole.

Maps of offsets or masks that are larger than the output, which DyHead gives to
the modulated convolution, are read as compiled mmcv reads them: the first
values of each image, one after the other, are a map of the output's size.

The arguments of the operators bear mmcv's names, which gives all numbers by
keyword; the buffers (``columns``, ``ones``) are for the compiled kernels and
have no effect here.

Shape letters: N images, C input and O output channels, H W input size, P Q
output size, K kernel positions, G deformable groups, B output pixels of all
images.

Source: Dai et al., https://arxiv.org/abs/1703.06211, and Zhu et al.,
https://arxiv.org/abs/1811.11168
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..utils.tensors import exact, widen
from ._rows import add_rows_, sum_rows

# Values of the sampled columns, (B, K, C), that are worked on at once.
_VALUES = 1 << 22


@dataclass(frozen=True)
class ConvGeometry:
    """Numbers of a convolution; pairs are along y and x."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    deform_groups: int

    @classmethod
    def of(cls, numbers: dict[str, int]) -> 'ConvGeometry':
        """From what mmcv gives by keyword; the plain ``d`` is the stride."""
        names, ends = ('kernel', 'stride', 'pad', 'dilation'), ('_h', '_w')
        if 'kH' in numbers:
            names, ends = ('k', 'd', 'pad', 'dilation'), ('H', 'W')
        return cls(
            *(tuple(numbers[name + end] for end in ends) for name in names),
            numbers['group'],
            numbers['deformable_group'],
        )

    @property
    def taps(self) -> int:
        """Kernel positions, K."""
        return self.kernel[0] * self.kernel[1]


def corner_terms(
    position: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Pixels around positions on a map and their bilinear weights.

    ``position``: ``(*, 2)``, y x in pixels; autograd may follow it; ``size``:
    ``(H, W)``. Returns pixels ``y * W + x``, ``(*, 4)``, int64 in [0, H * W),
    and weights, ``(*, 4)``. What lies outside the map has weight 0; so has all
    of a position that is a whole pixel or more outside it, with zero slope.
    """
    limit = position.new_tensor(size)
    reached = ((position > -1) & (position < limit)).all(-1)
    base = position.detach().floor()
    far = position - base
    near = 1 - far
    pixels, weights = [], []
    for dy, y_weight in enumerate((near[..., 0], far[..., 0])):
        for dx, x_weight in enumerate((near[..., 1], far[..., 1])):
            y, x = base[..., 0] + dy, base[..., 1] + dx
            inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
            inside &= reached
            pixels.append(torch.where(inside, y * size[1] + x, 0))
            weights.append(torch.where(inside, y_weight * x_weight, 0))
    return torch.stack(pixels, -1).long(), torch.stack(weights, -1)


def by_pixel(x: Tensor, taps: int, deform_groups: int) -> Tensor:
    """Bring offsets or masks into the order of the columns.

    ``x``: ``(N, G*K*F, P, Q)``; F is 2 for offsets (y, x) and 1 for masks.
    Returns ``(B, K, G, F)``, float64 for float64, else float32.
    """
    x = widen(x).unflatten(1, (deform_groups, taps, -1))
    return x.permute(0, 4, 5, 2, 1, 3).flatten(0, 2)


class DeformColumns:
    """The sampled input of a convolution, chunk by chunk.

    ``input``: ``(N, C, H, W)``; ``offset``: ``(N, G*K*2, P, Q)``, y and x in
    pixels by which each kernel position is displaced; ``mask``: ``(N, G*K, P,
    Q)``, factor of each sample; None for ones.
    """

    def __init__(
        self,
        input: Tensor,
        offset: Tensor,
        mask: Tensor | None,
        geometry: ConvGeometry,
    ) -> None:
        self.channels, *self.size = input.shape[1:]
        self.geometry = geometry
        self._check(input, offset, mask)
        groups = geometry.deform_groups
        table = widen(input).permute(0, 2, 3, 1).contiguous()
        self.table = table.view(-1, self.channels // groups)
        self.offset = by_pixel(offset, geometry.taps, groups)
        self.mask = None
        if mask is not None:
            self.mask = by_pixel(mask, geometry.taps, groups)
        self.out_size = offset.shape[2:]

    def _check(
        self, input: Tensor, offset: Tensor, mask: Tensor | None
    ) -> None:
        spec = self.geometry
        if self.channels % spec.deform_groups:
            raise ValueError(
                'input must have a multiple of deform_groups='
                f'{spec.deform_groups} channels, got {self.channels}'
            )
        out = [
            (n + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for n, pad, dilation, kernel, stride in zip(
                self.size,
                spec.padding,
                spec.dilation,
                spec.kernel,
                spec.stride,
            )
        ]
        maps = {'offset': (offset, 2), 'mask': (mask, 1)}
        for name, (tensor, fields) in maps.items():
            channels = fields * spec.deform_groups * spec.taps
            shape = (len(input), channels, *out)
            if tensor is not None and tuple(tensor.shape) != shape:
                raise ValueError(
                    f'{name} must have shape {shape} for input '
                    f'{tuple(input.shape)}, got {tuple(tensor.shape)}'
                )

    def chunks(self) -> Iterator[slice]:
        """Ranges of output pixels."""
        step = max(_VALUES // max(self.geometry.taps * self.channels, 1), 1)
        for start in range(0, len(self.offset), step):
            yield slice(start, start + step)

    def leaves(self, part: slice) -> list[Tensor]:
        """Offsets, and masks where there are any, of a range of pixels."""
        both = (self.offset, self.mask)
        return [x[part] for x in both if x is not None]

    def sample(
        self, part: slice, offset: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Columns of a range of output pixels.

        ``offset``: The offsets of these pixels; autograd may follow them;
        ``mask``: The masks of these pixels, likewise. Returns table rows and
        weights, ``(B*K*G, 4)``, and their sums, ``(B, K, C)``.
        """
        index, weight = corner_terms(self._origin(part) + offset, self.size)
        pixel = torch.arange(part.start, part.start + len(offset))
        image = pixel.to(index.device) // self.out_size.numel()
        groups = torch.arange(offset.shape[2], device=index.device)
        index += image[:, None, None, None] * (self.size[0] * self.size[1])
        index = index * len(groups) + groups[:, None]
        if mask is not None:
            weight = weight * mask
        index, weight = index.flatten(0, 2), weight.flatten(0, 2)
        columns = sum_rows(self.table, index, weight)
        return index, weight, columns.view(*offset.shape[:2], self.channels)

    def _origin(self, part: slice) -> Tensor:
        """Undisplaced positions, ``(B, K, 1, 2)``."""
        spec, device = self.geometry, self.offset.device
        count = len(self.offset[part])
        pixel = torch.arange(part.start, part.start + count, device=device)
        tap = torch.arange(spec.taps, device=device)
        pixel = pixel % self.out_size.numel()
        position = [
            pixels[:, None] * stride - padding + taps * dilation
            for pixels, taps, stride, padding, dilation in zip(
                (pixel // self.out_size[1], pixel % self.out_size[1]),
                (tap // spec.kernel[1], tap % spec.kernel[1]),
                spec.stride,
                spec.padding,
                spec.dilation,
            )
        ]
        return torch.stack(position, -1)[:, :, None]


def _from_pixel(x: Tensor, like: Tensor) -> Tensor:
    """``(B, K, G, F)`` in the shape and type of the offsets or masks."""
    images, _, height, width = like.shape
    x = x.unflatten(0, (images, height, width)).permute(0, 4, 3, 5, 1, 2)
    return x.reshape(like.shape).to(like.dtype)


def _matrix(weight: Tensor, groups: int) -> Tensor:
    """Kernel ``(O, C/groups, *)`` as ``(groups, K*C/groups, O/groups)``."""
    weight = widen(weight).flatten(2).unflatten(0, (groups, -1))
    return weight.permute(0, 3, 2, 1).flatten(1, 2)


def _from_matrix(matrix: Tensor, like: Tensor) -> Tensor:
    """Undo :func:`_matrix`."""
    matrix = matrix.unflatten(1, (-1, like.shape[1])).permute(0, 3, 2, 1)
    return matrix.reshape(like.shape).to(like.dtype)


def _split(x: Tensor, groups: int) -> Tensor:
    """``(B, K, C)`` as ``(groups, B, K * C/groups)``."""
    return x.unflatten(-1, (groups, -1)).movedim(-2, 0).flatten(2)


def _join(x: Tensor, taps: int) -> Tensor:
    """Undo :func:`_split`."""
    return x.unflatten(2, (taps, -1)).movedim(0, 2).flatten(2)


def _rows(x: Tensor) -> Tensor:
    """Maps ``(N, O, P, Q)`` as ``(B, 1, O)``."""
    return widen(x).permute(0, 2, 3, 1).flatten(0, 2)[:, None]


def _to_maps(rows: Tensor, like: Tensor) -> Tensor:
    """``(B, C)`` as maps of the shape and type of ``like``."""
    images, _, height, width = like.shape
    maps = rows.reshape(images, height, width, -1).permute(0, 3, 1, 2)
    return maps.to(like.dtype)


def _forward(columns: DeformColumns, weight: Tensor, output: Tensor) -> None:
    """Fill ``output``, ``(N, O, P, Q)``."""
    groups = columns.geometry.groups
    matrix = _matrix(weight, groups)
    rows = matrix.new_empty(len(columns.offset), len(weight))
    for part in columns.chunks():
        sampled = columns.sample(part, *columns.leaves(part))[2]
        rows[part] = _join(_split(sampled, groups) @ matrix, 1)[:, 0]
    output.copy_(_to_maps(rows, output))


def _backward(
    columns: DeformColumns,
    weight: Tensor,
    grad_output: Tensor,
    grad_matrix: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the table, and of offsets and masks by pixel.

    The one of :func:`_matrix` is added to ``grad_matrix`` if that is given.
    """
    groups, taps = columns.geometry.groups, columns.geometry.taps
    matrix = _matrix(weight, groups).transpose(1, 2)
    grad_rows = _rows(grad_output)
    table = torch.zeros_like(columns.table)
    grads = [torch.empty_like(x) for x in columns.leaves(slice(None))]
    for part in columns.chunks():
        grad = _split(grad_rows[part], groups)
        leaves = [x.detach().requires_grad_() for x in columns.leaves(part)]
        with torch.enable_grad():
            index, terms, sampled = columns.sample(part, *leaves)
        if grad_matrix is not None:
            split = _split(sampled.detach(), groups)
            grad_matrix += split.transpose(1, 2) @ grad
        grad = _join(grad @ matrix, taps)
        values = torch.autograd.grad(sampled, leaves, grad)
        for into, value in zip(grads, values):
            into[part] = value
        rows = grad.reshape(len(index), -1)
        add_rows_(table, index, terms.detach(), rows)
    return table, grads


def _first_values(x: Tensor, size: torch.Size) -> Tensor:
    """Maps larger than ``size``, ``(P, Q)``, as the compiled kernel reads."""
    if x.ndim != 4 or x.shape[2] < size[0] or x.shape[3] < size[1]:
        return x
    count = x.shape[1] * size.numel()
    return x.flatten(1)[:, :count].unflatten(1, (-1, *size))


def _to_first_values(grad: Tensor, like: Tensor) -> Tensor:
    """Undo :func:`_first_values` for a gradient; 0 for what is not read."""
    grad = grad.flatten(1)
    missing = like.shape[1:].numel() - grad.shape[1]
    return F.pad(grad, (0, missing)).view(like.shape)


@exact
def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    **numbers: int,
) -> None:
    """Fill ``output`` with the deformable convolution of ``input``.

    ``input``: ``(N, C, H, W)``; ``weight``: ``(O, C / group, kH, kW)``;
    ``offset``: ``(N, G*K*2, P, Q)``, y and x in pixels; ``output``: filled,
    ``(N, O, P, Q)``.
    """
    geometry = ConvGeometry.of(numbers)
    _forward(DeformColumns(input, offset, None, geometry), weight, output)


@exact
def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradInput: Tensor,
    gradOffset: Tensor,
    weight: Tensor,
    columns: Tensor,
    **numbers: int,
) -> None:
    """Fill the gradients of the input and the offsets of the forward call.

    Its arguments mean the same here; ``gradOutput`` is ``(N, O, P, Q)``, and
    ``gradInput`` and ``gradOffset`` are filled.
    """
    geometry = ConvGeometry.of(numbers)
    sampled = DeformColumns(input, offset, None, geometry)
    table, (grad,) = _backward(sampled, weight, gradOutput, None)
    gradInput.copy_(_to_maps(table, input))
    gradOffset.copy_(_from_pixel(grad, offset))


@exact
def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradWeight: Tensor,
    columns: Tensor,
    ones: Tensor,
    scale: float,
    **numbers: int,
) -> None:
    """Add ``scale`` times the gradient of the kernel to ``gradWeight``.

    The other arguments mean the same as in the forward call; ``gradOutput``
    is ``(N, O, P, Q)``.
    """
    geometry = ConvGeometry.of(numbers)
    sampled = DeformColumns(input, offset, None, geometry)
    grad_rows, group = _rows(gradOutput), geometry.groups
    total = torch.zeros_like(_matrix(gradWeight, group))
    for part in sampled.chunks():
        values = sampled.sample(part, *sampled.leaves(part))[2]
        grad = _split(grad_rows[part], group)
        total += _split(values, group).transpose(1, 2) @ grad
    gradWeight += _from_matrix(scale * total, gradWeight)


@exact
def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    with_bias: bool,
    **numbers: int,
) -> None:
    """Fill ``output`` with the modulated deformable convolution.

    As :func:`deform_conv_forward`, with ``bias``, ``(O,)`` or empty, and
    ``mask``, ``(N, G*K, P, Q)``, the factor of each sample. Of larger offsets
    and masks, the first values of each image are read as maps of P by Q.
    """
    geometry = ConvGeometry.of(numbers)
    maps = [_first_values(x, output.shape[2:]) for x in (offset, mask)]
    _forward(DeformColumns(input, *maps, geometry), weight, output)
    if with_bias:
        output += bias[:, None, None]


@exact
def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    with_bias: bool,
    **numbers: int,
) -> None:
    """Fill all gradients of the forward call.

    Its arguments mean the same here; ``grad_output`` is ``(N, O, P, Q)``,
    the other ``grad_*`` are filled, ``grad_bias`` only ``with_bias``.
    """
    geometry = ConvGeometry.of(numbers)
    maps = [_first_values(x, grad_output.shape[2:]) for x in (offset, mask)]
    sampled = DeformColumns(input, *maps, geometry)
    total = torch.zeros_like(_matrix(weight, geometry.groups))
    table, grads = _backward(sampled, weight, grad_output, total)
    grad_input.copy_(_to_maps(table, input))
    for into, grad, like in zip((grad_offset, grad_mask), grads, maps):
        into.copy_(_to_first_values(_from_pixel(grad, like), into))
    grad_weight.copy_(_from_matrix(total, weight))
    if with_bias:
        grad_bias.copy_(widen(grad_output).sum((0, 2, 3)))
