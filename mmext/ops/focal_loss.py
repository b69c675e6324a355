"""Sigmoid and softmax focal loss.

Shape letters: N samples, C classes.

Source: Lin et al., Focal Loss for Dense Object Detection,
https://arxiv.org/abs/1708.02002; the clamping of the logarithms and what is
done with labels outside the classes follow mmcv's CUDA kernels.
"""

import torch
from torch import Tensor

from ..utils.precision import exact, widen

__all__ = [
    'sigmoid_focal_loss_backward',
    'sigmoid_focal_loss_forward',
    'softmax_focal_loss_backward',
    'softmax_focal_loss_forward',
]


def _safe_log(probability: Tensor) -> Tensor:
    """Logarithm that stays finite at zero, as in the compiled kernels."""
    return probability.clamp(min=torch.finfo(torch.float32).tiny).log()


def _check_target(
    target: Tensor, high: int, weight: Tensor, classes: int
) -> None:
    """Refuse labels that the compiled kernels would read memory with."""
    if not target.numel():
        return
    low, most = (int(x) for x in torch.aminmax(target))
    if most > high:
        raise ValueError(
            f'target must be at most {high} with {classes} classes, got '
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


def _class_weight(weight: Tensor, target: Tensor) -> Tensor | float:
    """Weight of every sample by its label; 1 where no weight is given."""
    return widen(weight)[target] if weight.numel() else 1.0


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
    _check_target(target, classes, weight, classes)
    p = widen(input).sigmoid()
    loss = (alpha - 1) * p.pow(gamma) * _safe_log(1 - p)
    hit = _hits(target, classes)
    p = p[hit]
    loss[hit] = -alpha * (1 - p).pow(gamma) * _safe_log(p)
    if weight.numel():
        loss *= _class_weight(weight, target)[:, None]
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
    _check_target(target, classes, weight, classes)
    p = widen(input).sigmoid()
    q = 1 - p
    grad = (1 - alpha) * p.pow(gamma) * (p - gamma * q * _safe_log(q))
    hit = _hits(target, classes)
    p, q = p[hit], q[hit]
    grad[hit] = -alpha * q.pow(gamma) * (q - gamma * p * _safe_log(p))
    if weight.numel():
        grad *= _class_weight(weight, target)[:, None]
    grad_input.copy_(grad)


@exact
def softmax_focal_loss_forward(
    input: Tensor,
    target: Tensor,
    weight: Tensor,
    output: Tensor,
    gamma: float,
    alpha: float,
) -> None:
    r"""Fill ``output`` with :math:`-\alpha (1-p)^\gamma \log p` per sample.

    Args:
        input: Probabilities (mmcv takes the softmax), ``(N, C)``.
        target: ``(N,)``, int64, below C. A negative label has no loss.
        weight: ``(C,)`` by which a sample of that label is multiplied, or
            empty.
        output: Filled; ``(N,)``.
        gamma: Focusing exponent, >= 0.
        alpha: Factor of all losses.
    """
    classes = input.shape[1]
    _check_target(target, classes - 1, weight, classes)
    if not target.numel():
        return
    p = widen(input).gather(1, target.clamp(min=0)[:, None])[:, 0]
    loss = -alpha * (1 - p).pow(gamma) * _safe_log(p)
    loss *= _class_weight(weight, target)
    output.copy_(loss.masked_fill(target < 0, 0))


@exact
def softmax_focal_loss_backward(
    input: Tensor,
    target: Tensor,
    weight: Tensor,
    buff: Tensor,
    grad_input: Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Fill ``grad_input`` with the slope of each sample's loss in its logits.

    ``buff``: Filled with a factor of the gradient; ``(N,)``; ``grad_input``:
    Filled; ``(N, C)``.
    """
    classes = input.shape[1]
    _check_target(target, classes - 1, weight, classes)
    if not target.numel():
        return
    label = target.clamp(min=0)
    softmax = widen(input)
    p = softmax.gather(1, label[:, None])[:, 0]
    q = 1 - p
    # At p = 1 the product below is 0 * inf for gamma < 1; its limit is 0.
    slope = torch.where(q > 0, q.pow(gamma - 1) * p * _safe_log(p), 0)
    factor = alpha * (gamma * slope - q.pow(gamma))
    factor *= _class_weight(weight, target)
    factor = factor.masked_fill(target < 0, 0)
    buff.copy_(factor)
    grad = softmax * -factor[:, None]
    grad.scatter_add_(1, label[:, None], factor[:, None])
    grad_input.copy_(grad)
