"""Non-reentrant activation checkpointing of existing modules.

A checkpointed module keeps its class, its parameters and its names: only its
``forward`` is shadowed, on the instance, by a small callable. A state dict,
``copy.deepcopy`` and ``pickle`` therefore see an ordinary module, and a copy
computes with its own weights.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = [
    'CheckpointedForward',
    'checkpoint_modules',
    'checkpointable_blocks',
    'is_checkpointed',
    'num_checkpointed',
]


class CheckpointedForward:
    """Callable that runs a module's own forward under a checkpoint.

    Always ``use_reentrant=False``: a reentrant checkpoint is opaque to the
    graph walk of ``find_unused_parameters`` and marks its parameters ready
    twice. The random state and the autocast state, dtype included, are
    restored for the second run by PyTorch. Without gradients, as in
    evaluation, the module runs plainly.

    Args:
        module: The module whose class's ``forward`` is run.

    Note:
        The second run is a run like any other: a BatchNorm in training mode
        inside the module counts the batch twice in its running statistics.
        Losses and gradients do not depend on these.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward, under a checkpoint where gradients are on."""
        plain = type(self.module).forward
        if not torch.is_grad_enabled():
            return plain(self.module, *args, **kwargs)
        return checkpoint(
            plain, self.module, *args, use_reentrant=False, **kwargs
        )


def num_checkpointed(with_cp: bool | int, num_layers: int, name: str) -> int:
    """Number of leading layers that ``with_cp`` asks to checkpoint.

    Args:
        with_cp: False for none, True for all, or a number of layers in
            ``[0, num_layers]``, counted from the input.
        num_layers: How many layers there are.
        name: What the layers belong to, for the error message.

    Returns:
        A number in ``[0, num_layers]``.

    Raises:
        TypeError: If ``with_cp`` is neither a bool nor an int.
        ValueError: If the number is out of range.

    Examples:
        >>> num_checkpointed(True, 6, 'encoder')
        6
        >>> num_checkpointed(4, 6, 'encoder')
        4
    """
    if isinstance(with_cp, bool):
        return num_layers if with_cp else 0
    if not isinstance(with_cp, int):
        raise TypeError(
            f'{name}.with_cp must be a bool or a number of layers, '
            f'got {with_cp!r}'
        )
    if not 0 <= with_cp <= num_layers:
        raise ValueError(
            f'{name}.with_cp must be a bool or in [0, {num_layers}], '
            f'got {with_cp}; use False or 0 for no checkpointing'
        )
    return with_cp


def is_checkpointed(module: nn.Module) -> bool:
    """Whether :func:`checkpoint_modules` was applied to ``module``."""
    return isinstance(module.__dict__.get('forward'), CheckpointedForward)


def checkpoint_modules(
    modules: Sequence[nn.Module], with_cp: bool | int, name: str
) -> int:
    """Checkpoint the leading modules of a sequence, in place.

    Args:
        modules: Layers or blocks in the order in which they run.
        with_cp: See :func:`num_checkpointed`.
        name: What the modules belong to, for the error message.

    Returns:
        How many modules are checkpointed.

    Raises:
        TypeError: If ``with_cp`` is neither a bool nor an int.
        ValueError: If ``with_cp`` exceeds the number of modules.

    Examples:
        >>> import torch
        >>> layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in '12')
        >>> checkpoint_modules(layers, 1, 'encoder')
        1
        >>> [is_checkpointed(layer) for layer in layers]
        [True, False]
    """
    count = num_checkpointed(with_cp, len(modules), name)
    for module in modules[:count]:
        # Module.__setattr__ would do the same; the dict says that this is an
        # instance attribute on purpose.
        module.__dict__['forward'] = CheckpointedForward(module)
    return count


def checkpointable_blocks(backbone: nn.Module) -> list[nn.Module]:
    """Blocks of a backbone that can be checkpointed, in the order they run.

    These are the innermost modules with parameters and a ``with_cp`` of
    their own, which the hosts' residual and transformer blocks have.

    Args:
        backbone: A module such as ``mmdet``'s ``ResNet`` or
            ``SwinTransformer``.

    Returns:
        The blocks; empty for a backbone without any.
    """
    candidates = [
        module
        for module in backbone.modules()
        if module is not backbone
        and hasattr(module, 'with_cp')
        and next(module.parameters(), None) is not None
    ]
    known = set(candidates)
    return [
        module
        for module in candidates
        if known.isdisjoint(c for c in module.modules() if c is not module)
    ]
