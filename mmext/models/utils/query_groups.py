"""Query groups that share one decoder pass without seeing each other.

Shape letters: B images, T queries of all groups, P queries of one group.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ['filler_padding_mask', 'group_attention_mask']


def group_attention_mask(
    main_mask: Tensor | None,
    main_size: int,
    co_sizes: Sequence[int],
    device: torch.device,
) -> Tensor | None:
    """Self-attention mask of ``[denoising + matching | co-head 1 | ...]``.

    Args:
        main_mask: ``(main_size, main_size)`` bool mask of the first group, or
            None if all its queries see each other.
        main_size: Queries of the first group.
        co_sizes: Queries of each further group.
        device: Where the mask is made.

    Returns:
        ``(T, T)`` bool, True where attention is forbidden: the groups are
        blocks on the diagonal. None if there is nothing to forbid.

    Examples:
        >>> import torch
        >>> group_attention_mask(None, 2, [1], torch.device('cpu')).int()
        tensor([[0, 0, 1],
                [0, 0, 1],
                [1, 1, 0]], dtype=torch.int32)
    """
    if not co_sizes:
        return main_mask
    total = main_size + sum(co_sizes)
    mask = torch.ones((total, total), dtype=torch.bool, device=device)
    start = 0
    for size in (main_size, *co_sizes):
        mask[start : start + size, start : start + size] = False
        start += size
    if main_mask is not None:
        mask[:main_size, :main_size] = main_mask
    return mask


def filler_padding_mask(
    main_size: int,
    fillers: Sequence[Tensor | None],
    co_sizes: Sequence[int],
    batch: int,
    device: torch.device,
) -> Tensor | None:
    """Which queries no other may attend to.

    Args:
        main_size: Queries of the first group, which has no fillers.
        fillers: Per further group ``(B, P)`` bool, or None for no filler.
        co_sizes: ``P`` of each further group.
        batch: ``B``.
        device: Where the mask is made.

    Returns:
        ``(B, T)`` bool, or None if there is no filler. A group that consists
        of fillers only keeps them visible to itself: a query that may attend
        to nothing would be NaN.
    """
    if all(filler is None for filler in fillers):
        return None
    parts = [torch.zeros((batch, main_size), dtype=torch.bool, device=device)]
    for filler, size in zip(fillers, co_sizes):
        if filler is None:
            filler = parts[0].new_zeros((batch, size))
        parts.append(filler & ~filler.all(1, keepdim=True))
    return torch.cat(parts, 1)
