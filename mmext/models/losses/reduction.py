"""Turn a map of losses into the number that a head returns."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.fileio import load
from torch import Tensor

from ...utils.safe_load import careful_readers

REDUCTIONS = ('none', 'mean', 'sum')
DENOMINATORS = ('numel', 'valid', 'weight_sum')
# Of pickles, those that hold plain values only.
_WEIGHT_SUFFIXES = ('.json', '.npy', '.pickle', '.pkl', '.yaml', '.yml')
_EPS = torch.finfo(torch.float32).eps


def divide(total: Tensor, count: Tensor | int) -> Tensor:
    """Divide, where nothing divided by nothing is 0."""
    if isinstance(count, int):
        return total / max(count, 1)
    count = count.to(total.dtype)
    return total / torch.where(count == 0, torch.ones_like(count), count)


def check_reduction(reduction: str, avg_factor: Tensor | float | None) -> None:
    """Raise if ``reduction`` is unknown or does not go with ``avg_factor``."""
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
    """Raise if ``denominator`` is unknown, or not one of sigmoid losses."""
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
    """Raise if ``label_smoothing`` is outside [0, 1]."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(
            f'label_smoothing must be in [0, 1], got {label_smoothing}'
        )


def mean_of_sum(
    total: Tensor,
    avg_factor: Tensor | float | None,
    denominator: Tensor | int,
) -> Tensor:
    """The mean, from a sum of losses."""
    if avg_factor is None:
        return divide(total, denominator)
    return total / (avg_factor + _EPS)


def reduce_losses(
    losses: Tensor,
    reduction: str,
    avg_factor: Tensor | float | None,
    denominator: Tensor | int,
) -> Tensor:
    """Reduce losses of any shape, which are 0 where ignored."""
    if reduction == 'none':
        return losses
    total = losses.sum()
    if reduction == 'sum':
        return total
    return mean_of_sum(total, avg_factor, denominator)


def read_class_weight(
    value: Sequence[float] | np.ndarray | Tensor | str | Path | None,
) -> Tensor | None:
    """Class weights of a config, ``(C,)`` float32 on the CPU, or None."""
    if value is None:
        return None
    source = ''
    if isinstance(value, str | Path):
        source = f' in {str(value)!r}'
        if not Path(value).is_file():
            raise FileNotFoundError(
                'class_weight must be a list of numbers or an existing '
                f'file, got {str(value)!r}'
            )
        if Path(value).suffix not in _WEIGHT_SUFFIXES:
            raise ValueError(
                'class_weight must be a file that ends in '
                f'{", ".join(_WEIGHT_SUFFIXES)}, got {str(value)!r}'
            )
        if Path(value).suffix == '.npy':
            value = np.load(value, allow_pickle=False)
        else:
            with careful_readers():
                value = load(str(value))
    try:
        # On the CPU also where a model is built on another device.
        weight = torch.as_tensor(value, dtype=torch.float32, device='cpu')
        weight = weight.detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f'class_weight must be one number per class, got {value!r}{source}'
        ) from error
    if weight.dim() != 1 or not len(weight):
        raise ValueError(
            'class_weight must be one number per class, got shape '
            f'{tuple(weight.shape)}{source}'
        )
    wrong = ~(weight.isfinite() & (weight >= 0))
    if wrong.any():
        index = int(wrong.to(torch.uint8).argmax())
        raise ValueError(
            'class_weight must be finite and at least 0, got '
            f'{weight[index].item()} for class {index}{source}'
        )
    return weight


def check_class_weight(weight: Tensor | None, num_classes: int) -> None:
    """Raise if ``weight`` is neither ``(num_classes,)`` nor None."""
    if weight is not None and weight.shape != (num_classes,):
        raise ValueError(
            f'class_weight must have one number for each of {num_classes} '
            f'classes, got {weight.numel()}; the prediction has '
            f'{num_classes} channels'
        )
