"""Pixels as rows of a table, their weighted sums, and the transpose.

Bilinear sampling of a feature map is a weighted sum of a few of its pixels,
all channels of a pixel with the same weight. With the map stored as a table
of pixels that is one sparse matrix product, without any temporary of the size
``(samples, corners, channels)``.

Shape letters: R table rows, C channels, B sums, K terms of a sum.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


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
