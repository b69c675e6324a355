"""Cross-entropy of the hardest pixels, labels checked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...registry import MODELS
from .checked_cross_entropy import check_shapes, nll_map, weight_of
from .label_range import LabelRangeMonitor
from .reduction import check_class_weight, divide, read_class_weight
from .resized_logits import ResizedLogits

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def kth_smallest(values: Tensor, index: Tensor) -> Tensor:
    """The number at an index of the sorted numbers.

    Bits of non-negative floating-point numbers, read as an integer, are in
    the order of the numbers. The integer is found from its highest bit to
    its lowest, by counting the numbers below a candidate.

    ``values``: At least one, of at least 0, or inf; any shape, float32 or
    float64; ``index``: int64 scalar tensor on the same device, in ``[0,
    values.numel())``. Returns scalar of the same dtype, exactly one of the
    numbers.

    Note:
        One pass over the numbers for each bit but the sign; the host does
        not wait for the device. On a CPU, :func:`host_kth_smallest` is
        several times as fast.
    """
    integer = _INTEGERS[values.dtype]
    bits = values.contiguous().view(integer)
    number = torch.zeros((), dtype=integer, device=values.device)
    for bit in reversed(range(torch.iinfo(integer).bits - 1)):
        candidate = number + (1 << bit)
        below = torch.count_nonzero(bits < candidate)
        number = torch.where(below <= index, candidate, number)
    return number.view(values.dtype)


def host_kth_smallest(values: Tensor, index: Tensor) -> Tensor:
    """The number at an index of the sorted numbers.

    ``values``: At least one, on a CPU; any shape, float32 or float64;
    ``index``: int64 scalar tensor in ``[0, values.numel())``. Returns scalar
    of the same dtype, exactly one of the numbers. NaN counts as the largest.

    Note:
        Copies the numbers.
    """
    rank = int(index)
    parted = np.partition(values.detach().numpy(), rank, axis=None)
    return torch.from_numpy(parted)[rank].clone()


_DEFAULT_IGNORE_LABEL = 255


def hardest(
    nll: Tensor,
    valid: Tensor,
    threshold: float,
    min_kept: int,
    *,
    wait: bool | None = None,
) -> Tensor:
    """Select the pixels whose class is least probable.

    These are the pixels below a limit: the larger one of ``threshold`` and the
    probability of rank ``min_kept`` (from 0, the least probable first; the
    last one if there are fewer). If no pixel is below the limit, because all
    up to that rank are equal, the pixels at the limit are selected.

    ``nll``: Negative logarithm of the probability of the label, any shape,
    float32 or float64; ``valid``: Bool of that shape; others are not selected.
    Returns bool of that shape, True for at least one pixel if any is valid,
    and for pixels of probability NaN, so that the loss becomes NaN.

    Note:
        Nothing is sorted. If the host may wait, the rank is computed only if
        at most ``min_kept`` pixels are below ``threshold``; else always.
    """
    if not nll.numel():
        return valid
    if wait is None:
        wait = nll.device.type == 'cpu'
    # Infinity is above every probability: it comes last.
    probability = nll.detach().neg().exp_().masked_fill_(~valid, torch.inf)
    limit = probability.new_full((), threshold)
    enough = torch.count_nonzero(probability < threshold) > min_kept
    if not (wait and bool(enough)):
        rank = (torch.count_nonzero(valid) - 1).clamp(0, min_kept)
        search = host_kth_smallest if wait else kth_smallest
        limit = torch.maximum(limit, search(probability, rank))
    # Not the same as `<`: NaN is neither below nor above.
    kept = (probability >= limit).logical_not_().logical_and_(valid)
    at_limit = (probability <= limit).logical_and_(valid)
    return kept.logical_or_(at_limit.logical_and_(~kept.any()))


@MODELS.register_module()
class CheckedOhemCrossEntropy(nn.Module):
    """Online hard example mining for PIDNet and DDRNet, labels checked.

    Replaces MMSegmentation's ``OhemCrossEntropy``: it selects the same pixels
    and gives the same losses where that one is finite. The value to ignore is
    the head's. Where no pixel is below the limit, where MMSegmentation's is
    NaN, the pixels at the limit count, see :func:`hardest`. If all pixels are
    ignored, the loss is 0 with gradient 0.

    Args:
        ignore_label: Value to ignore where the call passes none; None for
            255.
        thres: Pixels whose class is less probable than this are hard.
        min_kept: At least this many of the least probable pixels count; if
            there are no more, all but the most probable one. 0 counts as 1,
            as in MMSegmentation.
        loss_weight: Factor of the result.
        class_weight: A number per class, or a file with them.
        loss_name: Key in the dict of losses.
        out_of_range: ``'raise'``, or ``'ignore'`` to leave labels out of
            range out of the loss, with one warning.

    Raises:
        FileNotFoundError: If ``class_weight`` is a file that is not there.
        ValueError: If an option is not as described.

    Source:
        Compatible with ``OhemCrossEntropy`` of MMSegmentation and PIDNet.

    Examples:
        >>> loss = CheckedOhemCrossEntropy(thres=0.9, min_kept=2)
        >>> score = torch.tensor([[[5.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
        >>> label = torch.tensor([[0, 1, 255]])
        >>> round(loss(score, label, ignore_index=255).item(), 4)
        0.6931
    """

    can_resize = True

    def __init__(
        self,
        ignore_label: int | None = None,
        thres: float = 0.7,
        min_kept: int = 100000,
        loss_weight: float = 1.0,
        class_weight: Sequence[float]
        | np.ndarray
        | Tensor
        | str
        | Path
        | None = None,
        loss_name: str = 'loss_ohem',
        *,
        out_of_range: str = 'raise',
    ) -> None:
        super().__init__()
        if not 0 <= thres <= 1:
            raise ValueError(
                f'thres must be a probability in [0, 1], got {thres}'
            )
        if min_kept < 0:
            raise ValueError(
                f'min_kept must be a number of pixels, got {min_kept}'
            )
        self.ignore_label = ignore_label
        self.thresh = thres
        self.min_kept = max(1, min_kept)
        self.loss_weight = loss_weight
        self.loss_name = loss_name
        self.label_range = LabelRangeMonitor(out_of_range, loss_name)
        self.register_buffer(
            'class_weight', read_class_weight(class_weight), persistent=False
        )

    def extra_repr(self) -> str:
        """Options, for printing the model."""
        return (
            f'thres={self.thresh}, min_kept={self.min_kept}, '
            f'out_of_range={self.label_range.policy!r}'
        )

    def ignored(self, ignore_index: int | None) -> int:
        """The value to ignore.

        Args:
            ignore_index: That of the head; None if it has none.

        Raises:
            ValueError: If ``ignore_label`` is another one.
        """
        if ignore_index is None:
            ignore_index = self.ignore_label
        if self.ignore_label not in (None, ignore_index):
            raise ValueError(
                f'ignore_label={self.ignore_label} of {self.loss_name} must '
                f"be the head's ignore_index={ignore_index}; leave "
                'ignore_label out of the loss'
            )
        return _DEFAULT_IGNORE_LABEL if ignore_index is None else ignore_index

    def forward(
        self,
        score: Tensor | ResizedLogits,
        target: Tensor,
        weight: Tensor | None = None,
        ignore_index: int | None = None,
    ) -> Tensor:
        """The loss.

        Args:
            score: Logits ``(N, C, *)``, or low-resolution ones.
            target: Classes ``(N, *)``, any integer dtype.
            weight: ``(N, *)``, multiplies the losses of selected pixels.
            ignore_index: That of the head.

        Returns:
            Scalar: the mean over the selected pixels of the loss times the
            class weight.

        Raises:
            LabelRangeError: If a label is neither in range nor ignored.
            TypeError: If ``target`` has no integer dtype.
            ValueError: If shapes do not fit, or ``ignore_label`` is not the
                head's.
        """
        num_classes = check_shapes(score, target, weight)
        check_class_weight(self.class_weight, num_classes)
        valid = self.label_range.check(
            target, num_classes, self.ignored(ignore_index)
        )
        if isinstance(score, ResizedLogits):
            nll = score.nll(target, valid)
        else:
            nll = nll_map(score, target, valid)
        return self.loss_of_map(nll, target, valid, weight)

    def loss_of_map(
        self,
        nll: Tensor,
        target: Tensor,
        valid: Tensor,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The loss, where the losses of all pixels are known.

        Args:
            nll: ``(N, *)`` negative logarithm of the probability of the
                label, float32 or float64, with its graph.
            target: Classes ``(N, *)``, any value where not valid.
            valid: Bool ``(N, *)``; others are left out.
            weight: As in :meth:`forward`.

        Returns:
            As :meth:`forward`.
        """
        kept = hardest(
            nll,
            valid,
            self.thresh,
            self.min_kept,
            wait=False if self.label_range.deferred else None,
        )
        losses = nll.masked_fill(~kept, 0)
        if self.class_weight is not None:
            losses = losses * weight_of(
                target, kept, self.class_weight, nll.dtype
            )
        if weight is not None:
            losses = losses * weight.to(nll.dtype).masked_fill(~kept, 0)
        return self.loss_weight * divide(
            losses.sum(), torch.count_nonzero(kept)
        )
