"""Checkpoint modules of a model by names, patterns and classes."""

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from ...utils.training import matches_name
from .checkpoint import checkpoint_module, is_checkpointed
from .reentrant import replace_reentrant_checkpoints, unreplaced_checkpoints


class CheckpointedModules(NamedTuple):
    """Names of the checkpointed modules of a model.

    Attributes:
        modules: All modules with a non-reentrant checkpoint.
        replaced: Those of them that had a reentrant checkpoint before.
        unreplaced: Modules that may still run a reentrant checkpoint.
    """

    modules: list[str]
    replaced: list[str]
    unreplaced: list[str]


def matches_class(module: nn.Module, kind: str) -> bool:
    """Whether a module is of a class, or of a class derived from it."""
    package, _, name = kind.rpartition('.')
    return any(
        base.__name__ == name
        and f'{base.__module__}.'.startswith(f'{package}.' if package else '')
        for base in type(module).__mro__
    )


def _as_names(value: str | Sequence[str], argument: str) -> list[str]:
    """A list of names; one name may stand alone."""
    names = [value] if isinstance(value, str) else list(value)
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(
                f'{argument} must be names, got {name!r} among them'
            )
    return names


def _near(word: str, known: set[str]) -> str:
    """A remedy that lists known names like a word."""
    near = difflib.get_close_matches(word, sorted(known), n=4, cutoff=0.5)
    return f'; near are {", ".join(near)}' if near else ''


def _insides(
    modules: dict[str, nn.Module], outer: set[str]
) -> dict[nn.Module, str]:
    """What is in some of the modules -> the outermost that it is in."""
    owners: dict[nn.Module, str] = {}
    for name, module in modules.items():
        if name in outer:
            for inner in module.modules():
                if inner is not module:
                    owners.setdefault(inner, name)
    return owners


def _runnable(
    option: str, names: list[str], modules: dict[str, nn.Module], near: str
) -> list[str]:
    """Those names of a pattern's that have a forward; at least one."""
    if not names:
        raise ValueError(
            f'{option} must fit a module of the model, got one that fits '
            f'none{near}'
        )
    runnable = [
        name
        for name in names
        if type(modules[name]).forward is not nn.Module.forward
        or 'forward' in modules[name].__dict__
    ]
    if not runnable:
        raise ValueError(
            f'{option} must fit a module that has a forward, got only '
            f'{", ".join(names[:4])} of class '
            f'{type(modules[names[0]]).__name__}; name what is in it, '
            f'such as {names[0] + ".*"!r}'
        )
    return runnable


def _match(
    modules: dict[str, nn.Module], patterns: list[str], classes: list[str]
) -> dict[str, list[str]]:
    """Pattern as the config has it -> names of what fits and can run."""
    matches: dict[str, list[str]] = {}
    for pattern in patterns:
        option = f'modules={pattern!r}'
        names = [name for name in modules if matches_name(name, pattern)]
        near = _near(pattern, set(modules))
        matches[option] = _runnable(option, names, modules, near)
    for kind in classes:
        option = f'classes={kind!r}'
        names = [
            n for n, module in modules.items() if matches_class(module, kind)
        ]
        near = _near(
            kind, {type(module).__name__ for module in modules.values()}
        )
        matches[option] = _runnable(option, names, modules, near)
    return matches


def find_modules(
    model: nn.Module,
    modules: str | Sequence[str] = (),
    classes: str | Sequence[str] = (),
) -> dict[str, nn.Module]:
    """Find what can be checkpointed by names, patterns and classes.

    A module inside another matching module, or inside one that is checkpointed
    already, is left out: the outer checkpoint covers it.

    Args:
        model: Not wrapped for DDP. The model itself is never returned.
        modules: Names or patterns, as of
            :func:`~mmext.utils.training.matches_name`.
        classes: Names of classes, see :func:`matches_class`.

    Returns:
        Name to module, each module once, in the order of
        ``model.named_modules()``.

    Raises:
        TypeError: If a pattern or a class is not a non-empty string.
        ValueError: If a pattern or a class matches nothing, matches only
            containers that are never run, such as ``nn.ModuleList``, or only
            modules inside other matching modules.

    Examples:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
        >>> list(find_modules(net, modules=['1']))
        ['1']
        >>> list(find_modules(net, modules='*', classes=['Linear']))
        ['0', '1']
        >>> find_modules(net, classes=['Linaer'])
        Traceback (most recent call last):
            ...
        ValueError: classes='Linaer' must fit a module of the model, got one \
that fits none; near are Linear
    """
    known = dict(model.named_modules(remove_duplicate=False))
    known.pop('')
    patterns = _as_names(modules, 'modules')
    matches = _match(known, patterns, _as_names(classes, 'classes'))
    done = {name for name in known if is_checkpointed(known[name])}
    inside = _insides(known, done.union(*matches.values()))
    result: dict[nn.Module, str] = {}
    for option, names in matches.items():
        outermost = [name for name in names if known[name] not in inside]
        if not outermost:
            raise ValueError(
                f'{option} must fit something that is not in a checkpointed '
                f'module, got only such as {names[0]!r} in '
                f'{inside[known[names[0]]]!r}; leave one of them out'
            )
        for name in outermost:
            result.setdefault(known[name], name)
    order = list(known)
    pairs = sorted(result.items(), key=lambda pair: order.index(pair[1]))
    return {name: module for module, name in pairs}


def checkpoint_model(
    model: nn.Module,
    modules: str | Sequence[str] = (),
    classes: str | Sequence[str] = (),
    replace_reentrant: bool = True,
) -> CheckpointedModules:
    """Checkpoint modules in place; a second call changes nothing.

    Args:
        model: Not wrapped for DDP.
        modules: Names or patterns, as of
            :func:`~mmext.utils.training.matches_name`.
        classes: Names of classes, see :func:`matches_class`.
        replace_reentrant: First run
            :func:`~.reentrant.replace_reentrant_checkpoints`.

    Returns:
        What is checkpointed now.

    Raises:
        TypeError: As :func:`find_modules`.
        ValueError: As :func:`find_modules` and
            :func:`~.reentrant.replace_reentrant_checkpoints`.

    Examples:
        >>> from mmdet.models.backbones import ResNet
        >>> model = ResNet(18, base_channels=4)
        >>> checkpoint_model(model, modules='layer[34].*').modules
        ['layer3.0', 'layer3.1', 'layer4.0', 'layer4.1']
    """
    replaced = (
        replace_reentrant_checkpoints(model) if replace_reentrant else []
    )
    for module in find_modules(model, modules, classes).values():
        checkpoint_module(module)
    named = model.named_modules()
    done = [name for name, module in named if is_checkpointed(module)]
    return CheckpointedModules(done, replaced, unreplaced_checkpoints(model))
