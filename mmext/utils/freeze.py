"""Parts of a model that are named in a config, and are not trained."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn


def matches_name(name: str, pattern: str) -> bool:
    """Whether a dotted name fits a pattern, part by part."""
    names, patterns = name.split('.'), pattern.split('.')
    return len(names) == len(patterns) and all(
        map(fnmatchcase, names, patterns)
    )


def _as_names(names: Any) -> list[str]:
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, Sequence) or not all(
        isinstance(name, str) and name for name in names
    ):
        raise TypeError(
            "freeze must be names of modules, such as ['backbone', 'neck'], "
            f'got {names!r}'
        )
    return list(names)


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
        :class:`mmext.engine.freeze.FreezeHook`.

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
    known = {name: module for name, module in model.named_modules() if name}
    found: dict[str, nn.Module] = {}
    for pattern in _as_names(names):
        fitting = [name for name in known if matches_name(name, pattern)]
        if not fitting:
            near = difflib.get_close_matches(pattern, known, 4, 0.5)
            raise ValueError(
                'freeze must name modules of the model, got '
                f'{pattern!r}, which fits none; near are '
                f'{", ".join(near) or sorted(dict(model.named_children()))}'
            )
        found |= {name: known[name] for name in fitting}
    for module in found.values():
        module.requires_grad_(False).eval()
    if found and not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            f'freeze must leave something to be trained, got {names!r}, which '
            'is all that the model has'
        )
    return found
