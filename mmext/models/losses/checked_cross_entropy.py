"""Softmax cross-entropy that never indexes by a label out of range.

Shape letters: N samples, C classes, ``*`` any further dimensions.
"""

import torch
from torch import Tensor

from ...ops._precision import wide_type
from ._reduction import (
    check_denominator,
    check_reduction,
    check_smoothing,
    mean_of_sum,
    reduce_losses,
)
from .class_weights import check_class_weight
from .label_range import LabelRangeMonitor
from .resized_logits import ResizedLogits

__all__ = [
    'checked_cross_entropy',
    'nll_map',
    'soft_cross_entropy',
]


def check_shapes(
    pred: Tensor | ResizedLogits, label: Tensor, weight: Tensor | None
) -> int:
    """Refuse shapes that do not belong together; the number of classes."""
    shape = tuple(pred.shape)
    if len(shape) < 2 or (shape[0], *shape[2:]) != tuple(label.shape):
        raise ValueError(
            'label must have the shape of pred without its dimension 1, got '
            f'{tuple(label.shape)} for pred {shape}'
        )
    if weight is not None and weight.shape != label.shape:
        raise ValueError(
            f'weight must have the shape of label, {tuple(label.shape)}, got '
            f'{tuple(weight.shape)}'
        )
    if shape[1] < 2:
        raise ValueError(
            'pred must have 2 or more channels, got 1: the softmax of one '
            'class is always 1, and its loss always 0; for one class and '
            'its background, set use_sigmoid=True'
        )
    return shape[1]


def weight_of(
    label: Tensor, valid: Tensor, class_weight: Tensor, dtype: torch.dtype
) -> Tensor:
    """Class weight of each label, 0 where it is not valid."""
    safe = torch.where(valid, label, 0).to(torch.int32)
    weight = class_weight.to(label.device, dtype)
    weight = weight.index_select(0, safe.flatten()).view(label.shape)
    return weight.masked_fill_(~valid, 0)


def _denominator(
    kind: str, valid: Tensor, label_weight: Tensor | None
) -> Tensor | int:
    """What a mean divides by."""
    if kind == 'numel':
        return valid.numel()
    if kind == 'valid' or label_weight is None:
        return torch.count_nonzero(valid)
    return label_weight.sum()


def nll_map(pred: Tensor, label: Tensor, valid: Tensor) -> Tensor:
    """Negative logarithm of the probability of the label.

    Args:
        pred: Logits ``(N, C, *)``, any floating dtype.
        label: Classes ``(N, *)``, any integer dtype, any value where not
            valid.
        valid: Bool ``(N, *)``.

    Returns:
        ``(N, *)`` float32, or float64 for float64 logits; 0 where not valid.

    Examples:
        >>> nll_map(
        ...     torch.zeros(1, 4), torch.tensor([9]), torch.tensor([False])
        ... )
        tensor([0.])
    """
    log_p = torch.log_softmax(pred, 1, wide_type(pred))
    return _nll(log_p, label, valid)


def _nll(log_p: Tensor, label: Tensor, valid: Tensor) -> Tensor:
    """As :func:`nll_map`, of logarithms of probabilities."""
    safe = torch.where(valid, label, 0).long().unsqueeze(1)
    return log_p.gather(1, safe).squeeze(1).neg().masked_fill(~valid, 0)


def _hard_losses(
    pred: Tensor,
    label: Tensor,
    valid: Tensor,
    class_weight: Tensor | None,
    label_weight: Tensor | None,
    label_smoothing: float,
) -> Tensor:
    """Loss of each label, 0 where it is not valid."""
    log_p = torch.log_softmax(pred, 1, wide_type(pred))
    losses = _nll(log_p, label, valid)
    if label_weight is not None:
        losses = losses * label_weight
    if not label_smoothing:
        return losses
    if class_weight is not None:
        weight = class_weight.to(pred.device, log_p.dtype)
        log_p = log_p * weight.view(-1, *[1] * (pred.dim() - 2))
    even = log_p.sum(1).neg().masked_fill(~valid, 0)
    part = label_smoothing / pred.shape[1]
    return (1 - label_smoothing) * losses + part * even


def checked_cross_entropy(
    pred: Tensor | ResizedLogits,
    label: Tensor,
    weight: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = 'mean',
    avg_factor: Tensor | float | None = None,
    denominator: str = 'valid',
    label_smoothing: float = 0.0,
    monitor: LabelRangeMonitor | None = None,
) -> Tensor:
    r"""Softmax cross-entropy of class indices, labels checked.

    .. math:: l = s \left[(1 - q) w_y (\mathrm{lse}(z) - z_y) + \frac{q}{C}
              \sum_c w_c (\mathrm{lse}(z) - z_c)\right]

    with weight ``s`` of the element, class weights ``w``, smoothing ``q``.

    Args:
        pred: Logits ``(N, C, *)``, any floating dtype, C at least 2; or
            low-resolution ones that stand for ``(N, C, H, W)``, which are
            then never made.
        label: Classes ``(N, *)`` in ``[0, C)``, any integer dtype.
        weight: ``(N, *)``, multiplies the losses, not the denominator.
        class_weight: ``(C,)``, at least 0.
        ignore_index: Labels of this value have loss 0; any int, inside of
            ``[0, C)``, too; None for no value.
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.
        avg_factor: What ``'mean'`` divides by, with a tiny number added as
            the hosts do. On the device if it is a tensor.
        denominator: What ``'mean'`` divides by otherwise: ``'numel'``, the
            number of labels, ignored ones included; ``'valid'``, those in
            range and not ignored; ``'weight_sum'``, the sum of their class
            weights, as PyTorch does.
        label_smoothing: In [0, 1], as in PyTorch.
        monitor: Checks the labels; None for one that raises.

    Returns:
        ``(N, *)`` for ``'none'``, else a scalar; float32, or float64 for
        float64 logits. Where nothing is valid, 0 with gradient 0.

    Raises:
        LabelRangeError: If a label is neither in range nor ignored; on a
            CPU at once, else by the monitor later on.
        TypeError: If ``label`` has no integer dtype.
        ValueError: If shapes, C, or an option are not as said.

    Note:
        On a GPU, the host does not wait for the device.

    Source:
        Equal to ``torch.nn.functional.cross_entropy`` with ``'weight_sum'``
        where that is defined.

    Examples:
        >>> pred = torch.zeros(2, 3, requires_grad=True)
        >>> label = torch.tensor([2, 255], dtype=torch.uint8)
        >>> loss = checked_cross_entropy(pred, label, ignore_index=255)
        >>> round(loss.item(), 4)
        1.0986
    """
    check_reduction(reduction, avg_factor)
    check_denominator(denominator)
    check_smoothing(label_smoothing)
    num_classes = check_shapes(pred, label, weight)
    check_class_weight(class_weight, num_classes)
    if monitor is None:
        monitor = _default_monitor
    valid = monitor.check(label, num_classes, ignore_index)
    if isinstance(pred, ResizedLogits) and reduction == 'none':
        pred = pred.dense()
    needs_count = reduction == 'mean' and avg_factor is None
    resized = isinstance(pred, ResizedLogits)
    label_weight = None
    if class_weight is not None and (
        not resized or (needs_count and denominator == 'weight_sum')
    ):
        label_weight = weight_of(label, valid, class_weight, wide_type(pred))
    count = None
    if needs_count:
        count = _denominator(denominator, valid, label_weight)
    if resized:
        total = pred.cross_entropy_sum(
            label,
            valid,
            class_weight=class_weight,
            weight=weight,
            label_smoothing=label_smoothing,
        )
        if reduction == 'sum':
            return total
        return mean_of_sum(total, avg_factor, count)
    losses = _hard_losses(
        pred, label, valid, class_weight, label_weight, label_smoothing
    )
    if weight is not None:
        # 0 * inf: what is ignored stays 0 whatever its weight.
        losses = losses * weight.to(losses.dtype).masked_fill(~valid, 0)
    return reduce_losses(losses, reduction, avg_factor, count)


def soft_cross_entropy(
    pred: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = 'mean',
    avg_factor: Tensor | float | None = None,
    denominator: str = 'valid',
    label_smoothing: float = 0.0,
    monitor: LabelRangeMonitor | None = None,
) -> Tensor:
    """Softmax cross-entropy of probabilities.

    Args:
        pred: Logits ``(N, C, *)``, any floating dtype, C at least 2.
        target: Probabilities in [0, 1], of the same shape. An element whose
            channels all are ``ignore_index`` is ignored.
        weight: As in :func:`checked_cross_entropy`, ``(N, *)``.
        class_weight: ``(C,)``, multiplies the term of each class.
        ignore_index: None for no value.
        reduction: As in :func:`checked_cross_entropy`.
        avg_factor: As in :func:`checked_cross_entropy`.
        denominator: As in :func:`checked_cross_entropy`; ``'weight_sum'``
            adds up the class weights by their probabilities.
        label_smoothing: In [0, 1], as in PyTorch.
        monitor: Checks the probabilities; None for one that raises.

    Returns:
        As :func:`checked_cross_entropy`.

    Raises:
        LabelRangeError: If a probability is not in [0, 1].
        ValueError: If shapes, C, or an option are not as said.

    Source:
        Equal to ``torch.nn.functional.cross_entropy`` with ``'numel'``,
        where nothing is ignored.
    """
    check_reduction(reduction, avg_factor)
    check_denominator(denominator)
    check_smoothing(label_smoothing)
    if target.shape != pred.shape:
        raise ValueError(
            f'soft labels must have the shape of pred, {tuple(pred.shape)}, '
            f'got {tuple(target.shape)}'
        )
    num_classes = check_shapes(pred, target[:, 0], weight)
    check_class_weight(class_weight, num_classes)
    ignored = torch.zeros_like(target[:, 0], dtype=torch.bool)
    if ignore_index is not None:
        ignored = (target == ignore_index).all(1)
    if monitor is None:
        monitor = _default_monitor
    valid = monitor.check_soft(target, ignored.unsqueeze(1)).all(1)
    log_p = torch.log_softmax(pred, 1, wide_type(pred))
    target = target.to(log_p.dtype).masked_fill(~valid.unsqueeze(1), 0)
    if class_weight is not None:
        shape = (1, -1, *[1] * (pred.dim() - 2))
        scaled = class_weight.to(pred.device, log_p.dtype).view(shape)
    else:
        scaled = 1.0
    smooth = (1 - label_smoothing) * target + label_smoothing / num_classes
    terms = -(log_p * (smooth * scaled))
    # A class of probability 0 adds nothing, be its logit -inf.
    losses = terms.masked_fill(smooth == 0, 0).sum(1)
    losses = losses.masked_fill(~valid, 0)
    if weight is not None:
        losses = losses * weight.to(losses.dtype).masked_fill(~valid, 0)
    count = losses.numel()
    if denominator == 'valid' or class_weight is None:
        count = torch.count_nonzero(valid) if denominator != 'numel' else count
    elif denominator == 'weight_sum':
        count = (target * scaled).sum()
    return reduce_losses(losses, reduction, avg_factor, count)


_default_monitor = LabelRangeMonitor(name='checked_cross_entropy')
