"""The displaced pixels that a deformable convolution multiplies.

Shape letters: N images, C channels, H W input size, P Q output size, K kernel
positions, G deformable groups, B output pixels of all images.

Source: Dai et al., https://arxiv.org/abs/1703.06211, and Zhu et al.,
https://arxiv.org/abs/1811.11168
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ._precision import widen
from ._rows import sum_rows

__all__ = ['ConvGeometry', 'DeformColumns', 'by_pixel', 'corner_terms']

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

    @property
    def taps(self) -> int:
        """Kernel positions, K."""
        return self.kernel[0] * self.kernel[1]


def corner_terms(
    place: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Pixels around positions on a map and their bilinear weights.

    Args:
        place: ``(*, 2)``, y x in pixels; autograd may follow it.
        size: ``(H, W)``.

    Returns:
        Pixels ``y * W + x``, ``(*, 4)``, int64 in [0, H * W), and weights,
        ``(*, 4)``. What lies outside the map has weight 0; so has all of a
        position that is a whole pixel or more outside it, with zero slope.

    Examples:
        >>> corner_terms(torch.tensor([0.5, 1.0]), (2, 3))
        (tensor([1, 2, 4, 5]), tensor([0.5000, 0.0000, 0.5000, 0.0000]))
    """
    limit = place.new_tensor(size)
    reached = ((place > -1) & (place < limit)).all(-1)
    base = place.detach().floor()
    far = place - base
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

    Args:
        x: ``(N, G*K*F, P, Q)``; F is 2 for offsets (y, x) and 1 for masks.
        taps: K.
        deform_groups: G.

    Returns:
        ``(B, K, G, F)``, float64 for float64, else float32.
    """
    x = widen(x).unflatten(1, (deform_groups, taps, -1))
    return x.permute(0, 4, 5, 2, 1, 3).flatten(0, 2)


class DeformColumns:
    """The sampled input of a convolution, chunk by chunk.

    Args:
        input: ``(N, C, H, W)``.
        offset: ``(N, G*K*2, P, Q)``, y and x in pixels by which each kernel
            position is displaced.
        mask: ``(N, G*K, P, Q)``, factor of each sample; None for ones.
        geometry: Numbers of the convolution.

    Raises:
        ValueError: If the channels do not divide by the deformable groups,
            or ``offset`` or ``mask`` does not have the shape that belongs to
            ``input``.
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

        Args:
            part: One of :meth:`chunks`.
            offset: The offsets of these pixels; autograd may follow them.
            mask: The masks of these pixels, likewise.

        Returns:
            Table rows and weights, ``(B*K*G, 4)``, and their sums,
            ``(B, K, C)``.
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
        place = [
            pixels[:, None] * stride - padding + taps * dilation
            for pixels, taps, stride, padding, dilation in zip(
                (pixel // self.out_size[1], pixel % self.out_size[1]),
                (tap // spec.kernel[1], tap % spec.kernel[1]),
                spec.stride,
                spec.padding,
                spec.dilation,
            )
        ]
        return torch.stack(place, -1)[:, :, None]
