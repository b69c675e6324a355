"""Sigmoid cross-entropies that never index by a label out of range.

Shape letters: N samples, C classes, ``*`` any further dimensions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import wide_type
from .label_range import LabelRangeMonitor
from .reduction import (
    check_class_weight,
    check_denominator,
    check_reduction,
    check_smoothing,
    divide,
    reduce_losses,
)
from .resized_logits import ResizedLogits

_NUM_KINDS = 2
_DEFAULT_IGNORE_INDEX = 255


def checked_binary_cross_entropy(
    pred: Tensor,
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
    """Sigmoid cross-entropy, one binary decision per class, labels checked.

    Args:
        pred: Logits ``(N, C, *)``, any floating dtype; or of any shape, if
            ``label`` has the same.
        label: One of these. Class indices ``(N, *)``, any integer dtype: the
            target is 1 for that class and 0 for others. With C = 1 and
            further dimensions, as in MMSegmentation, 1 for the class and 0
            for background. For ``(N, C)`` and ``(N,)``, as in MMDetection,
            C is background. Or targets in [0, 1] in pred's shape, any
            dtype.
        weight: ``(N, *)``, or pred's shape, some dimensions 1 if need be;
            multiplies the losses, not the denominator.
        class_weight: ``(C,)``, multiplies the loss of positive targets of
            each class (``pos_weight``).
        ignore_index: Labels of this value have loss 0; None for no value.
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.
        avg_factor: What ``'mean'`` divides by, with a tiny number added as
            the hosts do.
        denominator: What ``'mean'`` divides by otherwise: ``'numel'``, the
            number of logits, or ``'valid'``, those not ignored.
        label_smoothing: Targets move by half of this towards 0.5.
        monitor: Checks the labels; None for one that raises.

    Returns:
        Pred's shape for ``'none'`` (without the channel where C = 1 and
        label has none), else a scalar; float32, or float64 for float64.

    Raises:
        LabelRangeError: If a label is neither in range nor ignored.
        TypeError: If class indices have no integer dtype.
        ValueError: If a shape or an option is not as described.

    Source:
        Equal to ``torch.nn.functional.binary_cross_entropy_with_logits``
        of the targets.

    Examples:
        >>> loss = checked_binary_cross_entropy(
        ...     torch.zeros(2, 3), torch.tensor([0, 3])
        ... )
        >>> round(loss.item(), 4)
        0.6931
    """
    check_reduction(reduction, avg_factor)
    check_denominator(denominator, sigmoid=True)
    check_smoothing(label_smoothing)
    if monitor is None:
        monitor = _default_monitor
    if pred.dim() > 2 and pred.shape[1] == 1 and label.dim() < pred.dim():
        pred = pred.squeeze(1)
        if class_weight is not None:
            check_class_weight(class_weight, 1)
    elif class_weight is not None and pred.dim() > 1:
        check_class_weight(class_weight, pred.shape[1])
    target, valid = _targets(pred, label, ignore_index, monitor)
    dtype = wide_type(pred)
    target = target.to(dtype)
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / 2
    losses = F.binary_cross_entropy_with_logits(
        pred.to(dtype),
        target,
        pos_weight=_positive_weight(class_weight, pred, dtype),
        reduction='none',
    )
    losses = losses.masked_fill(~valid, 0)
    if weight is not None:
        weight = _like(weight, losses).to(dtype)
        losses = losses * weight.masked_fill(~valid, 0)
    count = losses.numel()
    if denominator == 'valid':
        count = torch.count_nonzero(valid)
    return reduce_losses(losses, reduction, avg_factor, count)


def _positive_weight(
    class_weight: Tensor | None, pred: Tensor, dtype: torch.dtype
) -> Tensor | None:
    if class_weight is None:
        return None
    class_weight = class_weight.to(pred.device, dtype)
    if class_weight.numel() == 1:
        return class_weight.view([1] * pred.dim())
    return class_weight.view(-1, *[1] * (pred.dim() - 2))


def _targets(
    pred: Tensor,
    label: Tensor,
    ignore_index: int | None,
    monitor: LabelRangeMonitor,
) -> tuple[Tensor, Tensor]:
    """Targets and valid elements, both in pred's shape."""
    if label.shape == pred.shape:
        if label.dtype == torch.bool:
            return label, torch.ones_like(label)
        if label.is_floating_point():
            ignored = torch.zeros_like(label, dtype=torch.bool)
            if ignore_index is not None:
                ignored = label == ignore_index
            valid = monitor.check_soft(label, ignored)
        else:
            valid = monitor.check(label, 2, ignore_index)
        return label.masked_fill(~valid, 0), valid
    if pred.dim() < 2 or (pred.shape[0], *pred.shape[2:]) != label.shape:
        raise ValueError(
            'label must have the shape of pred, or that without its '
            f'dimension 1, got {tuple(label.shape)} for pred '
            f'{tuple(pred.shape)}'
        )
    num_classes = pred.shape[1]
    valid = monitor.check(
        label, num_classes, ignore_index, background=pred.dim() == 2
    )
    classes = torch.arange(num_classes, device=pred.device)
    classes = classes.view(-1, *[1] * (pred.dim() - 2))
    valid = valid.unsqueeze(1)
    target = (label.unsqueeze(1) == classes) & valid
    return target, valid.expand_as(pred)


def _like(weight: Tensor, losses: Tensor) -> Tensor:
    """A weight per sample or per logit, to multiply the losses with."""
    shape = tuple(losses.shape)
    if weight.shape == (shape[0], *shape[2:]):
        return weight.unsqueeze(1).expand_as(losses)
    fits = weight.dim() == len(shape) and all(
        given in (1, wanted) for given, wanted in zip(weight.shape, shape)
    )
    if fits:
        return weight.expand_as(losses)
    raise ValueError(
        f'weight must have the shape of the losses, {shape}, with 1 where '
        'it is the same along a dimension, or that without dimension 1, got '
        f'{tuple(weight.shape)}'
    )


def checked_mask_cross_entropy(
    pred: Tensor,
    target: Tensor,
    label: Tensor,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int | None = None,
    monitor: LabelRangeMonitor | None = None,
) -> Tensor:
    """Sigmoid cross-entropy of the mask of each object's class.

    ``pred``: Logits ``(N, C, *)``, a mask per class; ``target``: ``(N, *)`` in
    [0, 1], any dtype; ``label``: ``(N,)``, class of each object. Returns
    ``(1,)``, the mean over all pixels of all objects that are not ignored, as
    MMDetection's ``CrossEntropyLoss`` does with ``use_mask=True``.
    """
    if (
        pred.dim() < 3
        or target.shape != (pred.shape[0], *pred.shape[2:])
        or label.shape != pred.shape[:1]
    ):
        raise ValueError(
            'pred must be (N, C, *), target (N, *) and label (N,), got '
            f'{tuple(pred.shape)}, {tuple(target.shape)} and '
            f'{tuple(label.shape)}'
        )
    num_classes = pred.shape[1]
    check_class_weight(class_weight, num_classes)
    if monitor is None:
        monitor = _default_monitor
    known = monitor.check(label, num_classes, None)
    safe = torch.where(known, label, 0).long()
    index = safe.view(-1, *[1] * (pred.dim() - 1))
    index = index.expand(-1, 1, *pred.shape[2:])
    own = pred.gather(1, index).squeeze(1)
    weight = known.view(-1, *[1] * (own.dim() - 1)).to(wide_type(pred))
    if class_weight is not None:
        chosen = class_weight.to(own.device, weight.dtype)[safe]
        weight = weight * chosen.view(weight.shape)
    return checked_binary_cross_entropy(
        own,
        target,
        weight.expand_as(own),
        ignore_index=ignore_index,
        monitor=monitor,
    )[None]


_default_monitor = LabelRangeMonitor(name='checked_binary_cross_entropy')


@MODELS.register_module()
class CheckedBoundaryLoss(nn.Module):
    """Boundary loss of PIDNet, without waiting for the device.

    Replaces MMSegmentation's ``BoundaryLoss``. The weight of an edge pixel is
    the share of other pixels, that of another pixel the share of edges.

    Args:
        loss_weight: Factor of the result.
        loss_name: Key in the dict of losses.
        ignore_index: Pixels of the edge map with this value have weight 0;
            None for the value of the call, or 255.
        out_of_range: ``'raise'``, or ``'ignore'`` to give pixels that are
            neither 0, 1 nor ``ignore_index`` the weight 0, with one warning.

    Raises:
        ValueError: If ``out_of_range`` is neither of both.

    Source:
        Compatible with ``BoundaryLoss`` of MMSegmentation and PIDNet.

    Examples:
        >>> loss = CheckedBoundaryLoss()
        >>> edges = torch.tensor([[[0, 1], [1, 1]]])
        >>> round(loss(torch.zeros(1, 1, 2, 2), edges).item(), 4)
        0.2599
    """

    def __init__(
        self,
        loss_weight: float = 1.0,
        loss_name: str = 'loss_boundary',
        *,
        ignore_index: int | None = None,
        out_of_range: str = 'raise',
    ) -> None:
        super().__init__()
        self.loss_weight = loss_weight
        self.ignore_index = ignore_index
        self.loss_name = loss_name
        self.label_range = LabelRangeMonitor(out_of_range, loss_name)

    def forward(
        self,
        bd_pre: Tensor | ResizedLogits,
        bd_gt: Tensor,
        ignore_index: int | None = None,
    ) -> Tensor:
        """The loss.

        Args:
            bd_pre: Logits ``(N, 1, H, W)``, any floating dtype, or
                low-resolution ones, which are resized: there is one channel.
            bd_gt: Edge map ``(N, H, W)``: 1 for an edge, 0 for none; any
                integer dtype.
            ignore_index: Value of padding, if the constructor got none.

        Returns:
            Scalar: the mean over all pixels, those without weight included.

        Raises:
            LabelRangeError: If a pixel of the edge map is out of range.
            TypeError: If ``bd_gt`` has no integer dtype.
            ValueError: If shapes do not fit.
        """
        if (
            len(bd_pre.shape) != 4
            or bd_pre.shape[1] != 1
            or (bd_gt.shape != (bd_pre.shape[0], *bd_pre.shape[2:]))
        ):
            raise ValueError(
                'bd_pre must be (N, 1, H, W) and bd_gt (N, H, W), got '
                f'{tuple(bd_pre.shape)} and {tuple(bd_gt.shape)}'
            )
        if isinstance(bd_pre, ResizedLogits):
            bd_pre = bd_pre.dense()
        if self.ignore_index is not None:
            ignore_index = self.ignore_index
        elif ignore_index is None:
            ignore_index = _DEFAULT_IGNORE_INDEX
        valid = self.label_range.check(bd_gt, _NUM_KINDS, ignore_index)
        dtype = wide_type(bd_pre)
        logits = bd_pre.squeeze(1).to(dtype)
        edge = (bd_gt == 1) & valid
        num_edge = torch.count_nonzero(edge)
        num_valid = torch.count_nonzero(valid)
        weight = torch.where(
            edge,
            divide((num_valid - num_edge).to(dtype), num_valid),
            divide(num_edge.to(dtype), num_valid),
        ).masked_fill_(~valid, 0)
        losses = F.binary_cross_entropy_with_logits(
            logits, edge.to(dtype), weight, reduction='sum'
        )
        return self.loss_weight * divide(losses, bd_gt.numel())
