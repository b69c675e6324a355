"""Non-reentrant activation checkpointing of existing modules.

A checkpointed module keeps its class, its parameters and its names: only its
``forward`` is shadowed, on the instance, by a small callable. A state dict,
``copy.deepcopy`` and ``pickle`` therefore see an ordinary module, and a copy
computes with its own weights.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint


@contextmanager
def held_statistics(module: nn.Module) -> Iterator[None]:
    """Keep running statistics as they are while norm layers run.

    For every kind of BatchNorm, and for InstanceNorm that tracks statistics.
    In training mode they still normalise with the statistics of the batch;
    only ``running_mean``, ``running_var`` and ``num_batches_tracked`` are not
    updated.
    """
    norms = [
        norm
        for norm in module.modules()
        if norm.training
        and getattr(norm, 'track_running_stats', False)
        and getattr(norm, 'running_mean', None) is not None
        and hasattr(norm, 'momentum')
    ]
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, count) in zip(norms, kept):
        # Not track_running_stats=False: autograd would save other tensors.
        norm.momentum = 0.0
        norm.num_batches_tracked = None if count is None else count.clone()
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, kept):
            norm.momentum, norm.num_batches_tracked = momentum, count


class _Region:
    """One call of a checkpointed module, which can be run again.

    Attributes:
        call: The arguments themselves, for the first run. Dropped after it,
            so that the tensors are PyTorch's to keep.
    """

    def __init__(self, forward: 'CheckpointedForward', call: tuple) -> None:
        self.forward = forward
        self.call: tuple | None = call
        leaves, self.spec = tree_flatten(call)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        # None where a tensor is put back.
        self.is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self.others = [
            None if isinstance(leaf, Tensor) else leaf for leaf in leaves
        ]

    def __call__(self, *tensors: Tensor) -> Any:
        if self.call is not None:
            args, kwargs = self.call
            return self.forward.plain(*args, **kwargs)
        given = iter(tensors)
        leaves = [
            next(given) if is_tensor else other
            for is_tensor, other in zip(self.is_tensor, self.others)
        ]
        # New lists and dicts: the first run may have changed those it got.
        args, kwargs = tree_unflatten(leaves, self.spec)
        with held_statistics(self.forward.module):
            return self.forward.plain(*args, **kwargs)

    def run(self) -> Any:
        """The first run."""
        tensors, self.tensors = self.tensors, []
        if not tensors:
            # Tells PyTorch the device, whose random state it then keeps.
            some = next(self.forward.module.parameters(), None)
            tensors = [] if some is None else [some.new_empty(0)]
        result = checkpoint(self, *tensors, use_reentrant=False)
        self.call = None
        return result


class CheckpointedForward:
    """Callable that runs a module's own forward under a checkpoint.

    Always ``use_reentrant=False``: a reentrant checkpoint is opaque to the
    graph walk of ``find_unused_parameters``, marks its parameters ready
    twice, and gives no gradients where no input needs one, as behind a
    frozen stem. The random state and the autocast state, dtype included, are
    restored for the second run by PyTorch. Without gradients, as in
    evaluation, the module runs plainly.

    Arguments may be positional and by keyword, and tensors may be in tuples,
    lists and dicts; results may be anything. The second run gets copies of the
    containers, with what they held before the first run. If a tensor among the
    arguments is changed in place after the call, PyTorch raises an error in
    the backward pass.

    Running statistics of BatchNorm are updated by the first run only, see
    :func:`held_statistics`.

    Attributes:
        has_run: Whether the module has run.

    Note:
        Any other state that a forward changes is changed by both runs, such
        as the vectors of spectral norm.
    """

    def __init__(
        self,
        module: nn.Module,
        own_forward: Callable[..., Any] | None = None,
    ) -> None:
        self.module = module
        self.own_forward = own_forward
        self.has_run = False

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module without a checkpoint."""
        if self.own_forward is not None:
            return self.own_forward(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward, under a checkpoint where gradients are on."""
        self.has_run = True
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        return _Region(self, (args, kwargs)).run()


def is_checkpointed(module: nn.Module) -> bool:
    """Whether :func:`checkpoint_module` was applied to ``module``."""
    return isinstance(module.__dict__.get('forward'), CheckpointedForward)


def checkpoint_module(module: nn.Module) -> None:
    """Checkpoint a module in place; a second call does nothing.

    Submodules that are checkpointed already stay so: results are the same and
    the second run needs less memory, but these submodules run three times.
    """
    forward = module.__dict__.get('forward')
    if isinstance(forward, CheckpointedForward):
        return
    if forward is None and type(module).forward is nn.Module.forward:
        raise TypeError(
            'module must have a forward to be checkpointed, got '
            f'{type(module).__name__}; checkpoint what is in it'
        )
    # Module.__setattr__ would do the same; the dict says that this is an
    # instance attribute on purpose.
    module.__dict__['forward'] = CheckpointedForward(module, forward)


def checkpoint_modules(
    modules: Sequence[nn.Module], with_cp: bool | int, name: str
) -> int:
    """Checkpoint the first modules of a sequence in place.

    Args:
        modules: Layers or blocks in the order in which they run.
        with_cp: How many; True for all.
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
    if not isinstance(with_cp, int):
        raise TypeError(
            f'{name}.with_cp must be a bool or a number of layers, '
            f'got {with_cp!r}'
        )
    count = len(modules) if with_cp is True else int(with_cp)
    if not 0 <= count <= len(modules):
        raise ValueError(
            f'{name}.with_cp must be a bool or in [0, {len(modules)}], '
            f'got {with_cp}; use False or 0 for no checkpointing'
        )
    for module in modules[:count]:
        checkpoint_module(module)
    return count


def checkpointable_blocks(backbone: nn.Module) -> list[nn.Module]:
    """Blocks of a backbone that can be checkpointed, in the order they run.

    These are the innermost modules with parameters and a ``with_cp`` of
    their own, which the hosts' residual and transformer blocks have.
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
