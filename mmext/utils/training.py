"""What a training does, and the dry run of a preflight in the same way.

Freezing of modules, groups of parameters, learning rates for another number of
images a step, and the state of random number generators.
"""

import difflib
import math
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

# Keys that MMEngine notes in a group, and that no optimizer reads: what they
# do is in lr and weight_decay.
MULTIPLIERS = ('lr_mult', 'decay_mult')


def matches_name(name: str, pattern: str) -> bool:
    """Whether a dotted name fits a pattern, part by part."""
    names, patterns = name.split('.'), pattern.split('.')
    return len(names) == len(patterns) and all(
        map(fnmatchcase, names, patterns)
    )


def freeze_modules(
    model: nn.Module, names: str | Sequence[str]
) -> dict[str, nn.Module]:
    """Let modules of a model not be trained, and put them into eval mode.

    To be called before the model is wrapped for several processes and before
    the optimizer is built; neither then knows of the parameters.

    Args:
        model: The model, changed in place.
        names: Names as in ``named_modules()``, or patterns where ``*``, ``?``
            and ``[...]`` stand for characters other than a dot:
            ``'backbone.layer*'``. All that is in a module is frozen, too.

    Returns:
        Name to module. They go back to training mode with ``train()``: see
        :class:`mmext.engine.runner.FreezeHook`.

    Raises:
        TypeError: If ``names`` is something else than names.
        ValueError: If one fits no module of the model, or nothing is left to
            be trained.

    Examples:
        >>> net = nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1))
        >>> list(freeze_modules(net, '0'))
        ['0']
        >>> [p.requires_grad for p in net.parameters()]
        [False, False, True, True]
    """
    patterns = [names] if isinstance(names, str) else names
    if not isinstance(patterns, Sequence) or not all(
        isinstance(pattern, str) and pattern for pattern in patterns
    ):
        raise TypeError(
            "freeze must be names of modules, such as ['backbone', 'neck'], "
            f'got {names!r}'
        )
    known = {name: module for name, module in model.named_modules() if name}
    frozen: dict[str, nn.Module] = {}
    for pattern in patterns:
        fitting = [name for name in known if matches_name(name, pattern)]
        if not fitting:
            near = difflib.get_close_matches(pattern, known, 4, 0.5)
            raise ValueError(
                'freeze must name modules of the model, got '
                f'{pattern!r}, which fits none; near are '
                f'{", ".join(near) or sorted(dict(model.named_children()))}'
            )
        frozen |= {name: known[name] for name in fitting}
    for module in frozen.values():
        module.requires_grad_(False).eval()
    if frozen and not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            f'freeze must leave something to be trained, got {names!r}, which '
            'is all that the model has'
        )
    return frozen


def merge_groups(
    groups: Iterable[Mapping[str, Any]],
    defaults: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups of an optimizer, with those of equal settings as one.

    A group has a list ``params`` and settings such as ``lr``, by default those
    of ``defaults``. They come in the order of their first parameter, without
    :data:`MULTIPLIERS`. Values that are not hashable, such as lists, are equal
    if they are the same object.
    """
    merged: dict[Hashable, dict[str, Any]] = {}
    for group in groups:
        settings = {
            key: value
            for key, value in {**(defaults or {}), **group}.items()
            if key != 'params' and key not in MULTIPLIERS
        }
        kind = frozenset(
            (key, value if isinstance(value, Hashable) else id(value))
            for key, value in settings.items()
        )
        merged.setdefault(kind, {**settings, 'params': []})
        merged[kind]['params'] += group['params']
    return list(merged.values())


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


def get_rng_state() -> dict[str, Any]:
    """State of Python's, numpy's and torch's global generators.

    Tensors and plain Python values only, so that it can be stored in a
    checkpoint that is read without running code. ``cuda``, the generator of
    the current CUDA device, is there once CUDA is in use.
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        'python': random.getstate(),
        'numpy': (
            str(kind),
            torch.from_numpy(keys.astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ),
        'torch': torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Set the generators to a state; ``cuda`` only where it is there."""
    version, internal, gauss = state['python']
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state(
        (kind, keys.numpy().astype(np.uint32), position, has_gauss, cached)
    )
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())
