"""Read the class weights of a loss from what a config may hold."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.fileio import load
from torch import Tensor

__all__ = ['check_class_weight', 'read_class_weight']


def read_class_weight(
    value: Sequence[float] | np.ndarray | Tensor | str | Path | None,
) -> Tensor | None:
    """Turn class weights of a config into a tensor.

    Args:
        value: A number per class; or a file with them, ``.npy``, or what
            MMEngine loads (``.json``, ``.yaml``, ``.pkl``); or None.

    Returns:
        ``(C,)`` float32 on the CPU, or None.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not one finite number of at least 0 per class.

    Examples:
        >>> read_class_weight([0.5, 2])
        tensor([0.5000, 2.0000])
    """
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
        if Path(value).suffix == '.npy':
            value = np.load(value)
        else:
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
    """Refuse class weights of another number of classes.

    Args:
        weight: ``(C,)``, or None.
        num_classes: Channels of the prediction.

    Raises:
        ValueError: If there are fewer weights or more.
    """
    if weight is not None and weight.shape != (num_classes,):
        raise ValueError(
            f'class_weight must have one number for each of {num_classes} '
            f'classes, got {weight.numel()}; the prediction has '
            f'{num_classes} channels'
        )
