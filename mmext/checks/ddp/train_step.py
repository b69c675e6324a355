"""Models with a ``train_step`` of their own, which DDP's wrappers pass over.

In one process a loop calls ``model.train_step``. In several it calls that of
the wrapper, and MMEngine's wrapper for DDP has one of its own: it runs
``forward(mode='loss')``, adds the losses up and steps one optimizer. What a
model does otherwise in ``train_step``, as a GAN with two optimizers, is then
not done, and nothing says so.
"""

import inspect
from typing import Any

from mmengine.model import (
    BaseModel,
    MMDistributedDataParallel,
    MMFullyShardedDataParallel,
    MMSeparateDistributedDataParallel,
)
from torch import nn

STEP_REMEDY = (
    "move what it does into forward(mode='loss') and parse_losses, which are "
    'called; or, for a model of several modules with an optimizer each, set '
    "model_wrapper_cfg=dict(type='MMSeparateDistributedDataParallel'), which "
    'calls it and averages the gradients of each direct submodule; or derive '
    'a wrapper from mmext.DistributedDataParallel with a train_step of its own'
)
# What a wrapper's own train_step does in place of the model's.
_METHODS = ('train_step', '_run_forward')
# Wrappers with such a train_step; ours adds itself.
WRAPPERS = [MMDistributedDataParallel, MMFullyShardedDataParallel]


def _own_methods(model: Any) -> tuple[str, ...]:
    """Methods of a model, or of its class, that are not ``BaseModel``'s."""
    kind = model if inspect.isclass(model) else type(model)
    of_object = {} if inspect.isclass(model) else vars(model)
    own = []
    for name in _METHODS:
        given = of_object.get(name, getattr(kind, name, None))
        if given is None or given is getattr(BaseModel, name):
            continue
        # Only BaseModel's train_step calls it.
        if name == 'train_step' or issubclass(kind, BaseModel):
            own.append(name)
    return tuple(own)


def has_own_train_step(model: Any) -> bool:
    """Whether a model, or a class, trains in another way than BaseModel."""
    return 'train_step' in _own_methods(model)


def bypassed_methods(model: Any, wrapper: Any) -> tuple[str, ...]:
    """Methods of a model that a wrapper does not call in training.

    Args:
        model: A model, or its class.
        wrapper: Class of the wrapper.

    Returns:
        Of ``'train_step'`` and ``'_run_forward'`` those that the model has
        of its own; empty for a wrapper that leaves the step to the model,
        or has another ``train_step`` than the ones that are known.
    """
    step = getattr(wrapper, 'train_step', None)
    known = {kind.train_step for kind in WRAPPERS}
    return _own_methods(model) if step in known else ()


def loose_parameters(model: nn.Module, wrapper: Any) -> list[str]:
    """Parameters that a wrapper of submodules averages for nobody.

    ``MMSeparateDistributedDataParallel`` wraps the direct submodules, and
    passes over trainable parameters of the model itself.
    """
    if not (
        inspect.isclass(wrapper)
        and issubclass(wrapper, MMSeparateDistributedDataParallel)
    ):
        return []
    return [
        name
        for name, parameter in model.named_parameters(recurse=False)
        if parameter.requires_grad
    ]
