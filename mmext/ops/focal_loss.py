"""Sigmoid focal loss.

Shape letters: N samples, C classes.

Source: Lin et al., Focal Loss for Dense Object Detection,
https://arxiv.org/abs/1708.02002; the clamping of the logarithms and what is
done with labels outside the classes follow mmcv's CUDA kernels.
"""

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
    low, most = (int(x) for x in torch.aminmax(target))
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


def _hits(target: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sample and class of every label that is one of the classes."""
    sample = ((target >= 0) & (target < classes)).nonzero()[:, 0]
    return sample, target[sample]


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
    classes = input.shape[1]
    _check_target(target, weight, classes)
    p = widen(input).sigmoid()
    loss = (alpha - 1) * p.pow(gamma) * _safe_log(1 - p)
    hit = _hits(target, classes)
    p = p[hit]
    loss[hit] = -alpha * (1 - p).pow(gamma) * _safe_log(p)
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
    classes = input.shape[1]
    _check_target(target, weight, classes)
    p = widen(input).sigmoid()
    q = 1 - p
    grad = (1 - alpha) * p.pow(gamma) * (p - gamma * q * _safe_log(q))
    hit = _hits(target, classes)
    p, q = p[hit], q[hit]
    grad[hit] = -alpha * q.pow(gamma) * (q - gamma * p * _safe_log(p))
    if weight.numel():
        grad *= widen(weight)[target][:, None]
    grad_input.copy_(grad)
