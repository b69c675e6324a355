"""Pixels as rows of a table, their weighted sums, and the transpose.

Bilinear sampling of a feature map is a weighted sum of a few of its pixels,
all channels of a pixel with the same weight. With the map stored as a table
of pixels that is one sparse matrix product, without any temporary of the size
``(samples, corners, channels)``.

Shape letters: R table rows, C channels, B sums, K terms of a sum; N images,
H W map size, U pixels in use.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..utils.tensors import wide_type


def sum_rows(table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Add up weighted rows of a table.

    ``out[b] = sum_k weight[b, k] table[index[b, k]]``

    ``table``: ``(R, C)``, float32 or float64; ``index``: ``(B, K)``, int64 in
    ``[0, R)``; ``weight``: ``(B, K)``, the type of ``table``; autograd may
    follow it, while it does not follow the table. Returns ``(B, C)``.
    """
    if not index.numel():
        return table.new_zeros(len(index), table.shape[1])
    if weight.requires_grad and torch.is_grad_enabled():
        # torch < 2.5 fails where the weights need a gradient and the table
        # does not. Nobody asks for the one of this leaf.
        table = table.detach().requires_grad_()
    return F.embedding_bag(index, table, per_sample_weights=weight, mode='sum')


def add_rows_(
    table: Tensor, index: Tensor, weight: Tensor, rows: Tensor
) -> None:
    """Add to a table in place what :func:`sum_rows` read from it.

    ``table[index[b, k]] += weight[b, k] rows[b]``: the transpose of the sum,
    thus its gradient with respect to the table.

    Args:
        table: ``(R, C)``, float32 or float64, contiguous; changed in place.
        index: ``(B, K)``, int64 in ``[0, R)``; a row may come many times.
        weight: ``(B, K)``, the type of ``table``.
        rows: ``(B, C)``, the type of ``table``.
    """
    sums = torch.arange(len(index), device=index.device)
    where = torch.stack([index, sums[:, None].expand_as(index)]).flatten(1)
    # Torch 2.11 warns that nothing is checked, unless the choice is made so.
    with torch.sparse.check_sparse_tensor_invariants(False):
        matrix = torch.sparse_coo_tensor(
            where, weight.flatten(), (len(table), len(index))
        )
    torch.addmm(table, matrix, rows, out=table)


class PixelTable:
    """The pixels of a feature map that some windows cover, as table rows.

    Bringing a map into the order of a table costs as much as a few dozen
    regions, so it is done only for the pixels that are needed, or for a whole
    image where those are most.

    Args:
        shape: ``(N, C, H, W)`` of the map.
        image: ``(R,)``, int64, image of every window.
        first: ``(R, 2)``, int64, first row and column of every window.
        last: ``(R, 2)``, int64, last row and column; inside the map.
    """

    def __init__(
        self, shape: torch.Size, image: Tensor, first: Tensor, last: Tensor
    ) -> None:
        images, self.channels, height, width = shape
        # A window adds 1 at its corner and takes it away past its edges, so
        # that sums along both axes count the windows over each pixel.
        marks = torch.zeros(
            images, height + 1, width + 1, dtype=torch.int, device=image.device
        )
        (y0, x0), (y1, x1) = first.unbind(1), (last + 1).unbind(1)
        for y, x, sign in (
            (y0, x0, 1),
            (y0, x1, -1),
            (y1, x0, -1),
            (y1, x1, 1),
        ):
            one = torch.full_like(y, sign, dtype=torch.int)
            marks.index_put_((image, y, x), one, accumulate=True)
        used = marks.cumsum(1).cumsum(2)[:, :-1, :-1].flatten(1) > 0
        used |= used.float().mean(1, keepdim=True) > 0.5
        self._row = used.flatten().cumsum(0) - 1
        self._pixels = [row.nonzero()[:, 0] for row in used]

    def rows_of(self, index: Tensor) -> Tensor:
        """Table rows of pixels given as ``(n * H + y) * W + x``."""
        if len(self) == len(self._row):
            return index
        return self._row[index].clamp_(min=0)

    def __len__(self) -> int:
        return sum(len(pixels) for pixels in self._pixels)

    def read(self, source: Tensor) -> Tensor:
        """Copy the pixels out of a map.

        ``source``: ``(N, C, H, W)``, any floating type. Returns ``(U, C)``,
        float64 for float64, else float32.
        """
        table = source.new_empty(
            len(self), self.channels, dtype=wide_type(source)
        )
        parts = table.split([len(pixels) for pixels in self._pixels])
        for plane, pixels, part in zip(source.flatten(2), self._pixels, parts):
            whole = len(pixels) == plane.shape[1]
            part.copy_((plane if whole else plane[:, pixels]).t())
        return table

    def add_to_(self, target: Tensor, table: Tensor) -> None:
        """Add the rows to the pixels of a map in place.

        ``target``: ``(N, C, H, W)``, any floating type; ``table``: ``(U, C)``.
        """
        parts = table.split([len(pixels) for pixels in self._pixels])
        for plane, pixels, part in zip(target.flatten(2), self._pixels, parts):
            part = part.t().to(target.dtype)
            if len(pixels) == plane.shape[1]:
                plane.add_(part)
            else:
                plane.index_add_(1, pixels, part)
