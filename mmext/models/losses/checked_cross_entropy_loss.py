"""Cross-entropy for the heads of MMSegmentation and MMDetection."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from ...registry import MODELS
from ._reduction import DENOMINATORS, check_reduction, check_smoothing
from .checked_binary_cross_entropy import (
    checked_binary_cross_entropy,
    checked_mask_cross_entropy,
)
from .checked_cross_entropy import checked_cross_entropy, soft_cross_entropy
from .class_weights import read_class_weight
from .label_range import LabelRangeMonitor
from .resized_logits import ResizedLogits

__all__ = ['CheckedCrossEntropyLoss']

_DEFAULT_IGNORE_INDEX = -100


@MODELS.register_module()
class CheckedCrossEntropyLoss(nn.Module):
    """Cross-entropy with class weights, ignored labels, and a range check.

    Takes the place of ``CrossEntropyLoss`` of MMSegmentation and of
    MMDetection in any config: the same arguments, the same losses where
    theirs are right. A label out of range is an error that tells its values
    and images, also on a GPU, where the host does not wait for it: see
    :class:`mmext.LabelRangeHook`.

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
        use_sigmoid: One yes or no per class instead of one class of all.
        use_mask: A mask per class, of which that of the object's class
            counts.
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
        ValueError: If an option is not as said.

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
                'alone is a sigmoid, too'
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
        self._loss_name = loss_name
        self.label_range = LabelRangeMonitor(out_of_range, loss_name)
        self.register_buffer(
            'class_weight', read_class_weight(class_weight), persistent=False
        )

    @property
    def loss_name(self) -> str:
        """Key in MMSegmentation's dict of losses."""
        return self._loss_name

    @property
    def can_resize(self) -> bool:
        """Whether it takes low-resolution logits as such."""
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
                ``use_mask``, in its place, the class of each object.
            avg_factor: What the mean divides by.
            reduction_override: In place of ``reduction``.
            ignore_index: Loss 0 for this value; None for that of the
                constructor.

        Returns:
            A scalar, ``(1,)`` with ``use_mask``, or for ``'none'`` a loss
            per label, or per logit with ``use_sigmoid``.

        Raises:
            LabelRangeError: If a label is neither in range nor ignored.
            TypeError: If class indices have no integer dtype.
            ValueError: If shapes or options do not go together.
        """
        reduction = reduction_override or self.reduction
        if self.use_mask:
            return self.loss_weight * self._mask_loss(
                cls_score, label, weight, avg_factor, reduction, ignore_index
            )
        function = checked_cross_entropy
        if self.use_sigmoid:
            function = checked_binary_cross_entropy
        elif label.is_floating_point():
            function = soft_cross_entropy
        if isinstance(cls_score, ResizedLogits) and (
            function is not checked_cross_entropy
        ):
            cls_score = cls_score.dense()
        return self.loss_weight * function(
            cls_score,
            label,
            weight,
            class_weight=self.class_weight,
            ignore_index=self._ignored(ignore_index),
            reduction=reduction,
            avg_factor=avg_factor,
            denominator=self._denominator(ignore_index is not None),
            label_smoothing=self.label_smoothing,
            monitor=self.label_range,
        )

    def _mask_loss(
        self,
        pred: Tensor,
        target: Tensor,
        label: Tensor | None,
        avg_factor: Tensor | float | None,
        reduction: str,
        ignore_index: int | None,
    ) -> Tensor:
        if label is None or avg_factor is not None or reduction != 'mean':
            raise ValueError(
                'use_mask=True takes (pred, target, label) and means over '
                f'all pixels, got label={label}, avg_factor={avg_factor}, '
                f'reduction={reduction!r}'
            )
        if ignore_index is None:
            ignore_index = self.ignore_index
        return checked_mask_cross_entropy(
            pred,
            target,
            label,
            class_weight=self.class_weight,
            ignore_index=ignore_index,
            monitor=self.label_range,
        )

    def _ignored(self, ignore_index: int | None) -> int:
        if ignore_index is None:
            ignore_index = self.ignore_index
        return _DEFAULT_IGNORE_INDEX if ignore_index is None else ignore_index

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
