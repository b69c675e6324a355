"""Cross-entropy for the heads of MMSegmentation and MMDetection."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import wide_type
from .checked_binary_cross_entropy import (
    checked_binary_cross_entropy,
    checked_mask_cross_entropy,
)
from .label_range import LabelRangeMonitor
from .reduction import (
    DENOMINATORS,
    check_class_weight,
    check_denominator,
    check_reduction,
    check_smoothing,
    mean_of_sum,
    read_class_weight,
    reduce_losses,
)
from .resized_logits import ResizedLogits


def check_shapes(
    pred: Tensor | ResizedLogits, label: Tensor, weight: Tensor | None
) -> int:
    """Check that shapes fit; returns the number of classes."""
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


def _losses(
    pred: Tensor,
    label: Tensor,
    valid: Tensor,
    class_weight: Tensor | None,
    label_weight: Tensor | None,
    label_smoothing: float,
) -> Tensor:
    """Loss of each label, a class or probabilities, 0 where not valid."""
    log_p = torch.log_softmax(pred, 1, wide_type(pred))
    losses, is_soft = None, label.is_floating_point()
    if not is_soft:
        losses = _nll(log_p, label, valid)
        if label_weight is not None:
            losses = losses * label_weight
        if not label_smoothing:
            return losses
    part = label_smoothing / pred.shape[1]
    if class_weight is not None:
        class_weight = class_weight.to(pred.device, log_p.dtype)
        log_p = log_p * class_weight.view(-1, *[1] * (pred.dim() - 2))
    if not is_soft:
        even = log_p.sum(1).neg().masked_fill(~valid, 0)
        return (1 - label_smoothing) * losses + part * even
    target = label.to(log_p.dtype).masked_fill(~valid.unsqueeze(1), 0)
    target = (1 - label_smoothing) * target + part
    # A class of probability 0 adds nothing, even if its logit is -inf.
    losses = -(log_p * target).masked_fill(target == 0, 0).sum(1)
    return losses.masked_fill(~valid, 0)


def _check_labels(
    label: Tensor,
    num_classes: int,
    ignore_index: int | None,
    monitor: LabelRangeMonitor,
) -> Tensor:
    """Where labels ``(N, *)``, or probabilities ``(N, C, *)``, count."""
    if not label.is_floating_point():
        return monitor.check(label, num_classes, ignore_index)
    ignored = torch.zeros_like(label[:, 0], dtype=torch.bool)
    if ignore_index is not None:
        ignored = (label == ignore_index).all(1)
    return monitor.check_soft(label, ignored.unsqueeze(1)).all(1)


def _label_weight(
    label: Tensor, valid: Tensor, class_weight: Tensor, dtype: torch.dtype
) -> Tensor:
    """Class weight of each label, or the mean of those of its classes."""
    if not label.is_floating_point():
        return weight_of(label, valid, class_weight, dtype)
    weight = class_weight.to(label.device, dtype)
    mean = torch.tensordot(label.to(dtype), weight, ([1], [0]))
    return mean.masked_fill(~valid, 0)


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
        label: Classes ``(N, *)`` in ``[0, C)``, any integer dtype; or
            probabilities in [0, 1], any floating dtype, in pred's shape.
        weight: ``(N, *)``, multiplies the losses, not the denominator.
        class_weight: ``(C,)``, at least 0; of probabilities, it multiplies
            the term of each class.
        ignore_index: Labels of this value have loss 0; any int, inside of
            ``[0, C)``, too; None for no value. Of probabilities, those whose
            channels all have it.
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.
        avg_factor: What ``'mean'`` divides by, with a tiny number added as
            the hosts do. On the device if it is a tensor.
        denominator: What ``'mean'`` divides by otherwise: ``'numel'``, the
            number of labels, ignored ones included; ``'valid'``, those in
            range and not ignored; ``'weight_sum'``, the sum of their class
            weights, as PyTorch does, of probabilities the mean weights.
        label_smoothing: In [0, 1], as in PyTorch.
        monitor: Checks the labels; None for one that raises.

    Returns:
        ``(N, *)`` for ``'none'``, else a scalar; float32, or float64 for
        float64 logits. Where nothing is valid, 0 with gradient 0.

    Raises:
        LabelRangeError: If a label is neither in range nor ignored; on a
            CPU at once, else by the monitor later on.
        TypeError: If ``label`` is of bool or complex numbers.
        ValueError: If a shape, C, or an option is not as described.

    Note:
        On a GPU, the host does not wait for the device.

    Source:
        Equal to ``torch.nn.functional.cross_entropy`` with ``'weight_sum'``
        where that is defined; of probabilities with ``'numel'``, where
        nothing is ignored.

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
    classes, is_soft = label, label.is_floating_point()
    if is_soft:
        if label.shape != pred.shape:
            raise ValueError(
                'soft labels must have the shape of pred, '
                f'{tuple(pred.shape)}, got {tuple(label.shape)}'
            )
        classes = label[:, 0]
    num_classes = check_shapes(pred, classes, weight)
    check_class_weight(class_weight, num_classes)
    if monitor is None:
        monitor = _default_monitor
    valid = _check_labels(label, num_classes, ignore_index, monitor)
    if isinstance(pred, ResizedLogits) and (is_soft or reduction == 'none'):
        pred = pred.dense()
    needs_count = reduction == 'mean' and avg_factor is None
    resized = isinstance(pred, ResizedLogits)
    label_weight = count = None
    if class_weight is not None and (
        not resized or (needs_count and denominator == 'weight_sum')
    ):
        label_weight = _label_weight(
            label, valid, class_weight, wide_type(pred)
        )
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
    losses = _losses(
        pred, label, valid, class_weight, label_weight, label_smoothing
    )
    if weight is not None:
        # 0 * inf: what is ignored stays 0 whatever its weight.
        losses = losses * weight.to(losses.dtype).masked_fill(~valid, 0)
    return reduce_losses(losses, reduction, avg_factor, count)


_default_monitor = LabelRangeMonitor(name='checked_cross_entropy')


_DEFAULT_IGNORE_INDEX = -100


@MODELS.register_module()
class CheckedCrossEntropyLoss(nn.Module):
    """Cross-entropy with class weights, ignored labels, and a range check.

    Replaces ``CrossEntropyLoss`` of MMSegmentation and of MMDetection in any
    config: the same arguments, and the same losses where theirs are right. A
    label out of range is an error that names its value and image. On a GPU
    the host does not wait for the check: see :class:`mmext.LabelRangeHook`.

    ``denominator`` is what the mean divides by:

    ================  =====================================================
    ``'numel'``       number of losses, ignored ones included; the mode of
                      MMSegmentation up to 1.1, with which the published
                      PIDNet was trained
    ``'valid'``       number of losses that are not ignored
    ``'weight_sum'``  sum of the class weights of labels that are not
                      ignored, as PyTorch does; softmax only
    ``'auto'``        what the config means in its host: without class
                      weights ``'numel'``, or ``'valid'`` with
                      ``avg_non_ignore``; with class weights the same in
                      MMDetection, ``'weight_sum'`` in MMSegmentation, whose
                      heads pass ``ignore_index`` in the call
    ================  =====================================================

    With ``use_sigmoid``, losses are counted per logit.

    Args:
        use_sigmoid: One binary decision per class instead of a softmax.
        use_mask: One mask per class; only that of the object's class counts.
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.
        class_weight: A number per class, or a file with them.
        loss_weight: Factor of the result.
        ignore_index: Used where the call passes none; None for -100.
        loss_name: Key in MMSegmentation's dict of losses.
        avg_non_ignore: See ``'auto'`` above.
        label_smoothing: In [0, 1].
        denominator: See above.
        out_of_range: ``'raise'``, or ``'ignore'`` to leave such labels out
            of the loss, with one warning.

    Raises:
        FileNotFoundError: If ``class_weight`` is a file that is not there.
        ValueError: If an option is not as described.

    Attributes:
        label_range: The :class:`~mmext.models.losses.LabelRangeMonitor`.
        class_weight: ``(C,)`` float32, or None.

    Examples:
        >>> import torch
        >>> loss = CheckedCrossEntropyLoss(class_weight=[1.0, 4.0])
        >>> label = torch.tensor([[0, 1, 255]])
        >>> value = loss(torch.zeros(1, 2, 3), label, ignore_index=255)
        >>> round(value.item(), 4)
        0.6931
    """

    def __init__(
        self,
        use_sigmoid: bool = False,
        use_mask: bool = False,
        reduction: str = 'mean',
        class_weight: Sequence[float]
        | np.ndarray
        | Tensor
        | str
        | Path
        | None = None,
        loss_weight: float = 1.0,
        *,
        ignore_index: int | None = None,
        loss_name: str = 'loss_ce',
        avg_non_ignore: bool = False,
        label_smoothing: float = 0.0,
        denominator: str = 'auto',
        out_of_range: str = 'raise',
    ) -> None:
        super().__init__()
        if use_sigmoid and use_mask:
            raise ValueError(
                'use_sigmoid and use_mask must not both be True; use_mask '
                'uses a sigmoid as well'
            )
        check_reduction(reduction, None)
        allowed = ('auto', *DENOMINATORS)
        if denominator not in allowed:
            raise ValueError(
                f'denominator must be one of {allowed}, got {denominator!r}'
            )
        if denominator == 'weight_sum' and (use_sigmoid or use_mask):
            raise ValueError(
                "denominator='weight_sum' is for softmax losses, got "
                f'use_sigmoid={use_sigmoid}, use_mask={use_mask}; take '
                "'numel' or 'valid'"
            )
        check_smoothing(label_smoothing)
        if use_mask and (label_smoothing or reduction != 'mean'):
            raise ValueError(
                "use_mask=True needs reduction='mean' and no label_smoothing,"
                f' got {reduction!r} and {label_smoothing}'
            )
        self.use_sigmoid = use_sigmoid
        self.use_mask = use_mask
        self.reduction = reduction
        self.loss_weight = loss_weight
        self.ignore_index = ignore_index
        self.avg_non_ignore = avg_non_ignore
        self.label_smoothing = label_smoothing
        self.denominator = denominator
        self.loss_name = loss_name
        self.label_range = LabelRangeMonitor(out_of_range, loss_name)
        self.register_buffer(
            'class_weight', read_class_weight(class_weight), persistent=False
        )

    @property
    def can_resize(self) -> bool:
        """Whether it takes low-resolution logits without resizing them."""
        return (
            not (self.use_sigmoid or self.use_mask)
            and self.reduction != 'none'
        )

    def extra_repr(self) -> str:
        """Options, for printing the model."""
        return (
            f'denominator={self.denominator!r}, '
            f'avg_non_ignore={self.avg_non_ignore}, '
            f'out_of_range={self.label_range.policy!r}'
        )

    def forward(
        self,
        cls_score: Tensor | ResizedLogits,
        label: Tensor,
        weight: Tensor | None = None,
        avg_factor: Tensor | float | None = None,
        reduction_override: str | None = None,
        ignore_index: int | None = None,
    ) -> Tensor:
        """The loss.

        Args:
            cls_score: Logits ``(N, C, *)``, or low-resolution ones.
            label: Classes ``(N, *)``, any integer dtype, or probabilities in
                the shape of the logits; with ``use_mask`` the masks.
            weight: ``(N, *)``, multiplies losses, not the denominator; with
                ``use_mask`` the class of each object.
            avg_factor: What the mean divides by.
            reduction_override: Replaces ``reduction``.
            ignore_index: Labels of this value have loss 0; None for the
                value of the constructor.

        Returns:
            A scalar, ``(1,)`` with ``use_mask``, or for ``'none'`` a loss
            per label, or per logit with ``use_sigmoid``.

        Raises:
            LabelRangeError: If a label is neither in range nor ignored.
            TypeError: If class indices have no integer dtype.
            ValueError: If shapes or options do not go together.
        """
        reduction = reduction_override or self.reduction
        ignored = self.ignore_index if ignore_index is None else ignore_index
        if self.use_mask:
            if weight is None or avg_factor is not None or reduction != 'mean':
                raise ValueError(
                    'use_mask=True takes (pred, target, label) and means over '
                    f'all pixels, got label={weight}, avg_factor='
                    f'{avg_factor}, reduction={reduction!r}'
                )
            return self.loss_weight * checked_mask_cross_entropy(
                cls_score,
                label,
                weight,
                class_weight=self.class_weight,
                ignore_index=ignored,
                monitor=self.label_range,
            )
        function = checked_cross_entropy
        if self.use_sigmoid:
            function = checked_binary_cross_entropy
            if isinstance(cls_score, ResizedLogits):
                cls_score = cls_score.dense()
        return self.loss_weight * function(
            cls_score,
            label,
            weight,
            class_weight=self.class_weight,
            ignore_index=_DEFAULT_IGNORE_INDEX if ignored is None else ignored,
            reduction=reduction,
            avg_factor=avg_factor,
            denominator=self._denominator(ignore_index is not None),
            label_smoothing=self.label_smoothing,
            monitor=self.label_range,
        )

    def _denominator(self, is_mmseg_call: bool) -> str:
        if self.denominator != 'auto':
            return self.denominator
        if (
            is_mmseg_call
            and self.class_weight is not None
            and not self.use_sigmoid
        ):
            return 'weight_sum'
        return 'valid' if self.avg_non_ignore else 'numel'
