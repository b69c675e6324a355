"""Components that are not registered, and arguments they do not take."""

import difflib
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import util
from typing import Any

from mmengine import registry as roots
from mmengine.registry import Registry
from torch import nn

from ...config import (
    DELETE,
    SECTIONS,
    ConfigNode,
    find_component,
    join_key,
    takes,
)
from ...findings import Finding, Severity
from .registry import ARG, TYPE, found
from .subject import Subject, change, plain_name

__all__: list[str] = []

# Keys that are read, and taken away, by whoever builds the component:
# MMEngine's registries, its runner in a section, MMCV's layers.
_OF_BUILDERS = {'type', '_scope_', '_delete_'}
_OF_RUNNERS = {
    'optim_wrapper': {'constructor', 'paramwise_cfg'},
    'param_scheduler': {'convert_to_iter_based'},
    'default_hooks': {'priority'},
    'custom_hooks': {'priority'},
}
# Dicts whose `type` is no component, or that others complete or cut down:
# layers of MMCV, functions that are looked up by name.
_OTHERS = {
    'norm_cfg',
    'conv_cfg',
    'act_cfg',
    'upsample_cfg',
    'nms',
    'nms_cfg',
    'dcn',
    'init_cfg',
}
_LIKE = 0.75
_LIKE_ARGUMENT = 0.7


def _is_other(section: ConfigNode) -> bool:
    return any(step in _OTHERS for step in section.path) or any(
        str(step).endswith(('norm_cfg', 'act_cfg', 'conv_cfg', 'nms_cfg'))
        for step in section.path
    )


@cache
def _registries() -> tuple[Registry, ...]:
    """All registries that MMEngine has at the root."""
    return tuple(
        registry
        for registry in vars(roots).values()
        if isinstance(registry, Registry)
    )


def _names(registry: Registry, scope: str) -> Iterator[str]:
    """Names of a registry and of all below it, as a config writes them."""
    own = registry.scope in (scope, 'mmengine')
    for name in registry.module_dict:
        yield name if own else f'{registry.scope}.{name}'
    for child in registry.children.values():
        yield from _names(child, scope)


def _is_installed(package: str) -> bool:
    try:
        return util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _is_component_name(kind: Any) -> bool:
    """A name of a class; `type='nms'` and the like are others."""
    return isinstance(kind, str) and plain_name(kind)[:1].isupper()


@TYPE.rule(
    'TYPE001',
    title='a component is not registered',
    severity=Severity.ERROR,
    remedy='correct the name, or import what registers it by custom_imports',
    fix='set the nearest name that is registered',
)
def unregistered_type(subject: Subject) -> Iterator[Finding]:
    """Names that no registry knows, in packages that are here."""
    for section in _unknown(subject):
        kind = section.cfg['type']
        if not _is_installed(_package(section)):
            continue
        near = _near_types(section, kind)
        # Only a whole section is surely built by a runner.
        if not near and len(section.path) > 1:
            continue
        path = (*section.path, 'type')
        yield found(
            f'{kind!r} is in no registry of scope {section.scope!r}',
            path=path,
            remedy=f'set it to {" or ".join(map(repr, near))}, or import '
            'what registers it by custom_imports'
            if near
            else '',
            names=tuple(near),
            options=change(path, near[0]) if near else {},
        )


@TYPE.rule(
    'TYPE002',
    title='a component is of a package that is not installed',
    severity=Severity.WARNING,
    remedy='install the package',
)
def missing_package(subject: Subject) -> Iterator[Finding]:
    """Prefixes of packages that are not here."""
    seen = set()
    for section in _unknown(subject):
        kind, package = section.cfg['type'], _package(section)
        if package in seen or _is_installed(package):
            continue
        seen.add(package)
        yield found(
            f'{kind!r} is of the package {package}, which is not installed '
            'here; what it takes is not known',
            path=(*section.path, 'type'),
            remedy=f'install {package} where the training runs',
            names=(package,),
        )


def _unknown(subject: Subject) -> Iterator[ConfigNode]:
    for section in subject.sections:
        kind = section.cfg.get('type')
        if not _is_component_name(kind) or _is_other(section):
            continue
        if subject.component(section) is None and (
            find_component(kind, _registries(), section.scope) is None
        ):
            yield section


def _package(section: ConfigNode) -> str:
    """Where the component of a section must come from."""
    kind = section.cfg['type']
    return kind.partition('.')[0] if '.' in kind else section.scope


def _near_types(section: ConfigNode, kind: str) -> list[str]:
    known = {
        name
        for registry in SECTIONS[section.path[0]]
        for name in _names(registry, section.scope)
    }
    # Of two with the same name, the one without a prefix comes last.
    ordered = sorted(known, key=lambda name: ('.' not in name, name))
    plain = {name.rpartition('.')[2]: name for name in ordered}
    wanted = plain_name(kind)
    if wanted in plain:
        return [plain[wanted]]
    near = difflib.get_close_matches(wanted, plain, 2, _LIKE)
    return [plain[name] for name in near]


@ARG.rule(
    'ARG001',
    title='a component does not take an argument',
    severity=Severity.ERROR,
    remedy='remove the argument, or correct its name',
    fix='remove the argument',
)
def unknown_argument(subject: Subject) -> Iterator[Finding]:
    """Keys beside a ``type`` whose class has no such argument."""
    misplaced = {item.place for item in subject.misplaced}
    for section in subject.sections:
        kind = subject.component(section)
        if kind is None or _is_other(section) or _is_layer(kind):
            continue
        for key in section.cfg:
            path = (*section.path, key)
            if (
                key not in _OF_BUILDERS
                and takes(kind, str(key)) is False
                and key not in _OF_RUNNERS.get(section.path[0], ())
                and join_key(path) not in misplaced
                and not _is_read_around(subject, section, key)
            ):
                yield _no_argument(kind, key, path)


def _is_read_around(subject: Subject, section: ConfigNode, key: str) -> bool:
    """Whether what a component is in may take an argument away from it."""
    outer = section.parent
    while outer is not None:
        kind = subject.component(outer)
        if kind is not None and _names_key(kind, key):
            return True
        outer = outer.parent
    return False


@cache
def _names_key(kind: Any, key: str) -> bool:
    """Whether the code of a class, or of its bases, has a key as text."""
    for base in inspect.getmro(kind) if inspect.isclass(kind) else (kind,):
        if base.__module__.split('.')[0] in ('builtins', 'torch'):
            continue
        try:
            code = inspect.getsource(base)
        except (OSError, TypeError):
            return True
        if f"'{key}'" in code or f'"{key}"' in code:
            return True
    return False


def _is_layer(kind: Any) -> bool:
    """PyTorch's layers: MMCV's builders complete and cut their arguments."""
    return inspect.isclass(kind) and (
        issubclass(kind, nn.Module) and kind.__module__.startswith('torch.')
    )


def _no_argument(kind: Any, key: str, path: tuple) -> Finding:
    near = difflib.get_close_matches(key, _arguments(kind), 1, _LIKE_ARGUMENT)
    return found(
        f'{kind.__name__} takes no argument {key}',
        path=path,
        remedy=f'rename it to {near[0]}, or remove it'
        if near
        else 'remove it',
        names=tuple(near),
        options=change(path, DELETE),
    )


def _arguments(kind: Any) -> list[str]:
    """Names of all arguments of a class and its bases."""
    functions = [kind]
    if inspect.isclass(kind):
        functions = [
            base.__init__ for base in kind.__mro__ if base is not object
        ]
    names: dict[str, None] = {}
    for function in functions:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            continue
        names |= dict.fromkeys(parameters)
    return [name for name in names if name != 'self']
