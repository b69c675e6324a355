"""Replace reentrant activation checkpoints of a model by ours.

A reentrant checkpoint is one opaque node in the graph: with
``find_unused_parameters=True`` its parameters count as unused and are marked
ready twice, keyword arguments are refused, and behind a frozen stem it gives
no gradients. All the ways in which the hosts checkpoint are reentrant.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

from mmengine.runner.activation_checkpointing import wrap_forward
from torch import nn

from .activation_checkpoint import (
    checkpoint_module,
    is_checkpointed,
)
from .checkpoint_calls import CheckpointCall, checkpoint_calls

__all__ = ['replace_reentrant_checkpoints', 'unreplaced_checkpoints']

FLAGS = ('with_cp', 'use_checkpoint')
_FAIRSCALE = 'fairscale.'
# The code that all of MMEngine's wrappers share.
_WRAPPER = wrap_forward(lambda: None).__code__


def _is_fairscale(forward: Any) -> bool:
    return (
        isinstance(forward, functools.partial)
        and (getattr(forward.func, '__module__', '') or '').startswith(
            _FAIRSCALE
        )
        and len(forward.args) == 3
    )


def _is_mmengine(forward: Any) -> bool:
    return getattr(forward, '__code__', None) is _WRAPPER


def _unwrap(module: nn.Module, name: str) -> Callable[..., Any] | None:
    """The instance's forward below all wrappers, None for its class's.

    Raises:
        ValueError: If a wrapper does more than to checkpoint.
    """
    forward = module.__dict__.get('forward')
    while _is_fairscale(forward) or _is_mmengine(forward):
        if _is_mmengine(forward):
            forward = forward.__wrapped__
            continue
        plain, _, offload = forward.args
        if offload:
            raise ValueError(
                f'{name} must be wrapped without offload_to_cpu to be '
                'replaced, got fairscale.nn.checkpoint.checkpoint_wrapper('
                '..., offload_to_cpu=True); leave that out, or set '
                'replace_reentrant=False'
            )
        # The wrapper of a copied module holds the module that was copied.
        forward = None if plain is type(module).forward else plain
        if forward is not None:
            forward = types.MethodType(plain, module)
    bound = isinstance(forward, types.MethodType)
    if bound and forward.__func__ is type(module).forward:
        return None
    return forward


def _drop_fairscale_hooks(module: nn.Module) -> None:
    """Remove the hooks that kept statistics off in fairscale's first run."""
    for each in module.modules():
        for hooks in (each._forward_pre_hooks, each._forward_hooks):
            for key, hook in list(hooks.items()):
                if getattr(hook, '__module__', '').startswith(_FAIRSCALE):
                    del hooks[key]


def _unwrap_forward(module: nn.Module, name: str) -> None:
    """Checkpoint a module in our way that a wrapper checkpoints."""
    was_fairscale = _is_fairscale(module.__dict__['forward'])
    forward = _unwrap(module, name)
    del module.__dict__['forward']
    if forward is not None:
        module.__dict__['forward'] = forward
    if was_fairscale:
        _drop_fairscale_hooks(module)
    checkpoint_module(module)


def _reentrant_calls(module: nn.Module) -> list[CheckpointCall]:
    return [
        call
        for call in checkpoint_calls(type(module))
        if not call.non_reentrant
    ]


def _parts(module: nn.Module, calls: list[CheckpointCall]) -> list[nn.Module]:
    """What the calls run; the whole module if that is unclear."""
    found: list[nn.Module] = []
    for call in calls:
        part = getattr(module, call.part, None) if call.part else None
        if not isinstance(part, nn.Module):
            return [module]
        found += part.children() if call.items else [part]
    return found


def replace_reentrant_checkpoints(model: nn.Module) -> list[str]:
    """Make the checkpoints of a model non-reentrant, in place.

    Replaced are

    * modules with a ``with_cp`` or ``use_checkpoint`` that is on, and code
      that calls ``torch.utils.checkpoint``: the blocks of backbones and some
      necks of mmcv, mmdet and mmseg, and those of users that are written
      alike. The flag goes to False. What ran under the checkpoint is
      checkpointed: a part such as ``self.convs``, or else the whole block;
    * modules that fairscale's ``checkpoint_wrapper`` wrapped, as with
      ``num_cp`` of mmdet's transformers;
    * modules that MMEngine's ``turn_on_activation_checkpointing`` wrapped.

    A flag on a parent that only hands it down to blocks is not changed. What
    is non-reentrant already stays, and what was nested is nested. A call
    that no flag of the module turns off cannot be replaced: see
    :func:`unreplaced_checkpoints`.

    Args:
        model: Without a wrapper for several processes.

    Returns:
        Names of the modules that are checkpointed in our way now and were
        not before, in the order of ``model.named_modules()``.

    Raises:
        ValueError: If fairscale's wrapper offloads to the CPU, too.

    Note:
        Losses and gradients stay the same. Running statistics of BatchNorm
        become those of a run without checkpoints, see
        :func:`~.activation_checkpoint.held_statistics`. A block behind a
        frozen stem, which the hosts run plainly, is checkpointed, too.

    Examples:
        >>> from mmdet.models.backbones import ResNet
        >>> model = ResNet(18, base_channels=4, with_cp=True)
        >>> replace_reentrant_checkpoints(model)[:3]
        ['layer1.0', 'layer1.1', 'layer2.0']
    """
    names = {module: name for name, module in model.named_modules()}
    before = {module for module in names if is_checkpointed(module)}
    for module, name in names.items():
        forward = module.__dict__.get('forward')
        if _is_fairscale(forward) or _is_mmengine(forward):
            _unwrap_forward(module, name)
    for module in names:
        flags = [flag for flag in FLAGS if getattr(module, flag, False)]
        calls = _reentrant_calls(module) if flags else []
        if not calls:
            continue
        for flag in flags:
            setattr(module, flag, False)
        for part in _parts(module, calls):
            checkpoint_module(part)
    return [
        name
        for module, name in names.items()
        if is_checkpointed(module) and module not in before
    ]


def unreplaced_checkpoints(model: nn.Module) -> list[str]:
    """Modules whose own code may run a reentrant checkpoint.

    Found by the code of their classes: a call of ``torch.utils.checkpoint``
    without ``use_reentrant=False``, in a module without a ``with_cp`` or
    ``use_checkpoint`` that is off. Not found is what other functions call,
    as the modules of ``transformers`` do.

    Args:
        model: Any.

    Returns:
        Names in ``model.named_modules()``.

    Examples:
        >>> from mmdet.models.backbones import ResNet
        >>> unreplaced_checkpoints(ResNet(18, base_channels=4, with_cp=True))
        ['layer1.0', 'layer1.1', 'layer2.0', 'layer2.1', 'layer3.0', \
'layer3.1', 'layer4.0', 'layer4.1']
        >>> unreplaced_checkpoints(ResNet(18, base_channels=4))
        []
    """
    return [
        name
        for name, module in model.named_modules()
        if _reentrant_calls(module)
        and (
            any(getattr(module, flag, False) for flag in FLAGS)
            or not any(hasattr(module, flag) for flag in FLAGS)
        )
    ]
