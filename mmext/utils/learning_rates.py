"""Learning rates for another number of images a step."""

import math


def rate_factor(ratio: float, optimizer: str, rule: str | None) -> float:
    """What a learning rate is multiplied by for another number of images.

    Args:
        ratio: Images a step over those that the rate is for.
        optimizer: Name of its class.
        rule: ``auto_scale_lr.rule``: ``'linear'`` or ``'sqrt'``; None for the
            square root for optimizers of Adam's kind, else linear.

    Raises:
        ValueError: If there is no such rule.
    """
    if rule not in (None, 'linear', 'sqrt'):
        raise ValueError(
            f"auto_scale_lr.rule must be 'linear' or 'sqrt', got {rule!r}"
        )
    root = rule == 'sqrt' if rule else 'adam' in optimizer.lower()
    return math.sqrt(ratio) if root else ratio
