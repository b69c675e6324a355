"""Sigmoid focal loss.

Shape letters: N samples, C classes.

Source: Lin et al., Focal Loss for Dense Object Detection,
https://arxiv.org/abs/1708.02002; the clamping of the logarithms and what is
done with labels outside the classes follow mmcv's CUDA kernels.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..utils.tensors import exact, widen


def _safe_log(probability: Tensor) -> Tensor:
    """Logarithm that stays finite at zero, as in the compiled kernels."""
    return probability.clamp(min=torch.finfo(torch.float32).tiny).log()


def _check_target(target: Tensor, weight: Tensor, classes: int) -> None:
    """Refuse labels that the compiled kernels would read memory with."""
    if not target.numel():
        return
    low, most = torch.stack(torch.aminmax(target)).tolist()
    if most > classes:
        raise ValueError(
            f'target must be at most {classes}, the number of classes, got '
            f'{most} at index {int(target.argmax())}'
        )
    if weight.numel() and (low < 0 or most >= classes):
        bad = low if low < 0 else most
        raise ValueError(
            f'target must be in [0, {classes}) where weight is given, got '
            f'{bad}; weight has one entry for each class'
        )


def _put_target_class(
    values: Tensor, target: Tensor, p: Tensor, own: Callable[[Tensor], Tensor]
) -> None:
    """Put ``own`` of the probability where the class is the target.

    ``values`` and ``p``: ``(N, C)``. Rows whose label is none of the classes
    keep their values. No mask is an index: a GPU would be waited for.
    """
    column = target.clamp(0, values.shape[1] - 1)[:, None]
    new = own(p.gather(1, column))
    old = values.gather(1, column)
    values.scatter_(1, column, new.where(target[:, None] == column, old))


@exact
def sigmoid_focal_loss_forward(
    input: Tensor,
    target: Tensor,
    weight: Tensor,
    output: Tensor,
    gamma: float,
    alpha: float,
) -> None:
    r"""Fill ``output`` with the loss of every sample and class.

    .. math:: -\alpha (1-p)^\gamma \log p \text{ for the target class, }
              -(1-\alpha) p^\gamma \log(1-p) \text{ for the others}

    Args:
        input: Logits, ``(N, C)``.
        target: ``(N,)``, int64, at most C. C and any negative label mean
            that no class is the target.
        weight: ``(C,)`` by which the rows of its label are multiplied, or
            empty.
        output: Filled; ``(N, C)``.
        gamma: Focusing exponent, >= 0.
        alpha: Weight of the target class, in [0, 1].
    """
    _check_target(target, weight, input.shape[1])
    p = widen(input).sigmoid()
    loss = (alpha - 1) * p.pow(gamma) * _safe_log(1 - p)
    _put_target_class(
        *(loss, target, p),
        lambda p: -alpha * (1 - p).pow(gamma) * _safe_log(p),
    )
    if weight.numel():
        loss *= widen(weight)[target][:, None]
    output.copy_(loss)


@exact
def sigmoid_focal_loss_backward(
    input: Tensor,
    target: Tensor,
    weight: Tensor,
    grad_input: Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Fill ``grad_input`` with the slope of each loss in its own logit.

    ``grad_input``: Filled; ``(N, C)``.
    """
    p = widen(input).sigmoid()
    q = 1 - p
    grad = (1 - alpha) * p.pow(gamma) * (p - gamma * q * _safe_log(q))
    _put_target_class(
        *(grad, target, p),
        lambda p: (
            -alpha * (1 - p).pow(gamma) * (1 - p - gamma * p * _safe_log(p))
        ),
    )
    if weight.numel():
        grad *= widen(weight)[target][:, None]
    grad_input.copy_(grad)
