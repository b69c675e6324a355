"""Turn a map of losses into the number that a head returns."""

import torch
from torch import Tensor

__all__ = [
    'DENOMINATORS',
    'REDUCTIONS',
    'check_denominator',
    'check_reduction',
    'check_smoothing',
    'divide',
    'mean_of_sum',
    'reduce_losses',
]

REDUCTIONS = ('none', 'mean', 'sum')
DENOMINATORS = ('numel', 'valid', 'weight_sum')
_EPS = torch.finfo(torch.float32).eps


def divide(total: Tensor, count: Tensor | int) -> Tensor:
    """Divide, where nothing divided by nothing is 0.

    Args:
        total: Scalar.
        count: Scalar, at least 0.

    Returns:
        ``total / count``; ``total`` where ``count`` is 0.
    """
    if isinstance(count, int):
        return total / max(count, 1)
    count = count.to(total.dtype)
    return total / torch.where(count == 0, torch.ones_like(count), count)


def check_reduction(reduction: str, avg_factor: Tensor | float | None) -> None:
    """Refuse a reduction that is none, or does not suit ``avg_factor``.

    Args:
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.
        avg_factor: What to divide by, if given.

    Raises:
        ValueError: If it is another word, or ``'sum'`` with ``avg_factor``.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}"
        )
    if reduction == 'sum' and avg_factor is not None:
        raise ValueError(
            f"avg_factor must be None with reduction='sum', got {avg_factor};"
            " it divides the sum of reduction='mean'"
        )


def check_denominator(denominator: str, sigmoid: bool = False) -> None:
    """Refuse a word for what the mean divides by that is none.

    Args:
        denominator: One of :data:`DENOMINATORS`.
        sigmoid: Of a sigmoid loss, which has no ``'weight_sum'``.

    Raises:
        ValueError: If it is another word.
    """
    if denominator not in DENOMINATORS:
        raise ValueError(
            f'denominator must be one of {DENOMINATORS}, got {denominator!r}'
        )
    if sigmoid and denominator == 'weight_sum':
        raise ValueError(
            "denominator must be 'numel' or 'valid' for sigmoid losses, got "
            "'weight_sum': their class weights multiply positives only"
        )


def check_smoothing(label_smoothing: float) -> None:
    """Refuse label smoothing that is no share.

    Args:
        label_smoothing: In [0, 1].

    Raises:
        ValueError: If it is outside.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(
            f'label_smoothing must be in [0, 1], got {label_smoothing}'
        )


def mean_of_sum(
    total: Tensor,
    avg_factor: Tensor | float | None,
    denominator: Tensor | int,
) -> Tensor:
    """The mean, from a sum of losses.

    Args:
        total: Scalar.
        avg_factor: Divide by this and a tiny number, as the hosts do; None
            for ``denominator``.
        denominator: Number of losses, or sum of their weights.

    Returns:
        Scalar.
    """
    if avg_factor is None:
        return divide(total, denominator)
    return total / (avg_factor + _EPS)


def reduce_losses(
    losses: Tensor,
    reduction: str,
    avg_factor: Tensor | float | None,
    denominator: Tensor | int,
) -> Tensor:
    """Reduce.

    Args:
        losses: Any shape, 0 where ignored.
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.
        avg_factor: As in :func:`mean_of_sum`.
        denominator: As in :func:`mean_of_sum`.

    Returns:
        ``losses`` itself, or a scalar.
    """
    if reduction == 'none':
        return losses
    total = losses.sum()
    if reduction == 'sum':
        return total
    return mean_of_sum(total, avg_factor, denominator)
