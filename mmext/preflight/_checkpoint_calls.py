"""Know how reentrant checkpoints are called.

What they run, they run under no_grad; whether gradients were on outside
cannot be told from in there.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

__all__ = ['checkpoint_calls']

_FAIRSCALE = 'fairscale.nn.checkpoint.checkpoint_activations'


@contextmanager
def checkpoint_calls(
    done: Callable[[Any], None] = lambda result: None,
) -> Iterator[list[bool]]:
    """Watch the calls of reentrant checkpoints.

    Args:
        done: Is called with the result of each.

    Yields:
        Whether gradients were on, for each call that is running, the
        outermost first. Empty outside of any.

    Examples:
        >>> from torch.utils.checkpoint import checkpoint
        >>> with checkpoint_calls() as modes:
        ...     seen = checkpoint(lambda x: list(modes), 1, use_reentrant=True)
        >>> seen
        [True]
    """
    modes: list[bool] = []
    kinds = [CheckpointFunction]
    if _FAIRSCALE in sys.modules:
        kinds.append(sys.modules[_FAIRSCALE].CheckpointFunction)
    with ExitStack() as exits:
        for kind in kinds:
            exits.enter_context(_watched(kind, modes, done))
        yield modes


@contextmanager
def _watched(
    kind: Any, modes: list[bool], done: Callable[[Any], None]
) -> Iterator[None]:
    original = kind.apply
    own = vars(kind).get('apply')

    def apply(*args: Any, **kwargs: Any) -> Any:
        modes.append(torch.is_grad_enabled())
        try:
            result = original(*args, **kwargs)
        finally:
            modes.pop()
        done(result)
        return result

    kind.apply = apply
    try:
        yield
    finally:
        if own is None:
            del kind.apply
        else:
            kind.apply = own
