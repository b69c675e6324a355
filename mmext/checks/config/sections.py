"""Sections of a config, and what the components in them take."""

import ast
import difflib
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from mmengine.registry import (
    DATA_SAMPLERS,
    DATASETS,
    EVALUATOR,
    FUNCTIONS,
    HOOKS,
    LOG_PROCESSORS,
    LOOPS,
    METRICS,
    MODEL_WRAPPERS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    STRATEGIES,
    TASK_UTILS,
    TRANSFORMS,
    VISBACKENDS,
    VISUALIZERS,
    Registry,
)

from .walk import Steps, walk_dicts

_DATA = (DATASETS, DATA_SAMPLERS, TRANSFORMS, FUNCTIONS)
_METRICS = (METRICS, EVALUATOR)

# Sections of MMEngine's predecessor, and of a strategy, that nothing reads at
# the top level. A config may use such a name for a variable of its own.
UNREAD = ('model_wrapper', 'runner', 'optimizer', 'optimizer_config')

# Sections of a config -> where the components in them are registered; empty
# where there are none.
SECTIONS: dict[str, tuple[Registry, ...]] = {
    'model': (MODELS, TASK_UTILS),
    'data_preprocessor': (MODELS,),
    'optim_wrapper': (OPTIM_WRAPPERS, OPTIMIZERS, OPTIM_WRAPPER_CONSTRUCTORS),
    'param_scheduler': (PARAM_SCHEDULERS,),
    'train_cfg': (LOOPS,),
    'val_cfg': (LOOPS,),
    'test_cfg': (LOOPS,),
    'train_dataloader': _DATA,
    'val_dataloader': _DATA,
    'test_dataloader': _DATA,
    'val_evaluator': _METRICS,
    'test_evaluator': _METRICS,
    'default_hooks': (HOOKS,),
    'custom_hooks': (HOOKS,),
    'visualizer': (VISUALIZERS, VISBACKENDS),
    'log_processor': (LOG_PROCESSORS,),
    'model_wrapper_cfg': (MODEL_WRAPPERS,),
    'strategy': (STRATEGIES, MODEL_WRAPPERS),
    'env_cfg': (),
    'randomness': (),
    'auto_scale_lr': (),
    'compile': (),
    **dict.fromkeys(UNREAD, ()),
}


@dataclass(frozen=True)
class ConfigNode:
    """A dict somewhere in a config.

    Attributes:
        path: Keys and indices that lead to it.
        cfg: The dict.
        scope: Registry scope in which its ``type`` is looked up.
        parent: The dict that it is in, None for a whole section.
    """

    path: Steps
    cfg: Mapping
    scope: str
    parent: 'ConfigNode | None' = None

    @property
    def name(self) -> str:
        """The key that it has, or that the list has that it is in."""
        return next(key for key in reversed(self.path) if isinstance(key, str))


def walk_nodes(value: Any, path: Steps, scope: str) -> Iterator[ConfigNode]:
    """All dicts in a value, the outer ones first, with their scopes."""
    seen: dict[Steps, ConfigNode] = {}
    # The keys in custom_keys are names of parameters.
    for where, cfg in walk_dicts(value, path, skip=('custom_keys',)):
        outer = where
        while len(outer) > len(path) and outer not in seen:
            outer = outer[:-1]
        parent = seen.get(outer)
        own = cfg.get('_scope_') or (parent.scope if parent else scope)
        seen[where] = section = ConfigNode(where, cfg, own, parent)
        yield section


def is_used(name: str, code: str) -> bool:
    """Whether a config's own code, without comments, uses a top-level name."""
    words = r'\b(?:if|not|and|or|else|in)\s+'
    before = rf'(?:[=(\[,:+*/-]\s*|\b_base_\.|{words})'
    after = r'\b(?!\s*=(?!=))'
    return re.search(before + re.escape(name) + after, code) is not None


# Packages whose code is known: what they read, and what they do not.
_KNOWN = ('mmext', 'mmengine', 'mmdet', 'mmseg', 'mmcv', 'mmpretrain', 'torch')


def is_own_key(cfg: Mapping[str, Any], place: str) -> bool:
    """Whether ``own_keys`` of a config says that its own code reads a key.

    Args:
        cfg: The config. ``own_keys`` at its top level lists names of keys,
            such as ``'with_cp'``, for any place, or places, such as
            ``'model.neck.with_cp'``; ``*`` stands for any text.
        place: The key, such as ``model.neck.with_cp``.

    Raises:
        TypeError: If ``own_keys`` is no list of texts.
    """
    own = cfg.get('own_keys', ())
    if not isinstance(own, list | tuple) or not all(
        isinstance(pattern, str) for pattern in own
    ):
        raise TypeError(
            "own_keys must be a list of keys, such as ['with_cp'], got "
            f'{own!r}'
        )
    name = re.split(r'[.\[]', place)[-1]
    return any(
        fnmatchcase(place, pattern) or fnmatchcase(name, pattern)
        for pattern in own
    )


def own_code_with(
    key: str, cfg: Mapping[str, Any], kinds: Iterable[Any]
) -> str:
    """A file of a project's own code that names a key; empty for none.

    Args:
        key: A name.
        cfg: The config, whose ``custom_imports`` are code of the project.
        kinds: Components of the config; those of known packages do not count.
    """
    imports = (cfg.get('custom_imports') or {}).get('imports') or ()
    modules = [imports] if isinstance(imports, str) else list(imports)
    classes = {base for kind in kinds for base in getattr(kind, '__mro__', ())}
    modules += sorted(base.__module__ for base in classes)
    own = tuple(
        f'{module}.'
        for module in map(str, modules)
        if module.partition('.')[0] not in (*_KNOWN, 'builtins')
    )
    word = re.compile(rf'\b{re.escape(key)}\b')
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, '__file__', None) or ''
        if not f'{name}.'.startswith(own) or not file.endswith('.py'):
            continue
        with suppress(OSError, UnicodeDecodeError):
            if word.search(Path(file).read_text(encoding='utf-8')):
                return file
    return ''


def find_component(
    kind: Any, registries: Sequence[Registry], scope: str
) -> Callable | None:
    """The class or function that a ``type`` names; None if not found here."""
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    names = [kind] if '.' in kind else [f'{scope}.{kind}', kind]
    for registry in registries:
        for name in names:
            try:
                component = registry.get(name)
            except (ImportError, RuntimeError):
                # Of a package that is not here, or broken: building it will
                # say so, and nothing is known about it until then.
                continue
            if callable(component):
                return component
    return None


def takes(
    component: Callable, key: str, forwards: bool = False
) -> bool | None:
    """Whether a class or a function has an argument of a name.

    None if that depends on what is done with ``**kwargs``. Where these go to
    the base class and nowhere else, its arguments count; with ``forwards``
    that is taken for granted.
    """
    if not inspect.isclass(component):
        return _has(component, key)
    after: type | None = None
    for base in component.__mro__:
        if base.__module__ == 'torch.nn.modules.module':
            return False
        if base is object:
            # A base that is not here may have been replaced by `object`.
            own = len(component.__mro__) == 2
            return None if own and '__init__' in vars(component) else False
        init = base.__dict__.get('__init__')
        if after is not None or init is None:
            # Passed over by `super(After, self)`.
            after = None if base is after else after
            continue
        has = _has(init, key)
        if has is not None:
            return has
        named = _forwarded_by(init)
        if named is None and not forwards:
            return None
        if named not in (None, '', '__class__', base.__name__):
            after = _named(component, named)
    return False


def swallows(component: type, key: str) -> bool:
    """Whether a class takes an argument by ``**kwargs``, and drops it.

    It must neither hand these on nor name the argument in its code.
    """
    for base in component.__mro__:
        init = base.__dict__.get('__init__')
        if init is None or base is object:
            continue
        if _has(init, key) is not None:
            return False
        if _forwarded_by(init) is None:
            return _keeps_to_itself(init, key)
    return False


@lru_cache(maxsize=4096)
def _keeps_to_itself(init: Callable, key: str) -> bool:
    """Whether ``**kwargs`` are only asked for other names than a key."""
    name = _kwargs_of(init)
    try:
        text = textwrap.dedent(inspect.getsource(init))
        tree = ast.parse(text)
    except (OSError, SyntaxError, TypeError):
        return False
    asked = {
        id(part)
        for node in ast.walk(tree)
        for part in _asked(node)
        if isinstance(part, ast.Name)
    }
    uses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == name
    ]
    word = re.compile(rf'\b{re.escape(key)}\b')
    return all(id(use) in asked for use in uses) and not word.search(text)


def _asked(node: ast.AST) -> list[ast.AST]:
    """What an expression looks a single name up in."""
    if isinstance(node, ast.Compare):
        return list(node.comparators)
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [node.func.value] if node.func.attr in ('get', 'pop') else []
    return []


def _named(component: type, name: str) -> type | None:
    """Class of a name among those that a class inherits."""
    for base in component.__mro__:
        if base.__name__ == name:
            return base
    return None


@lru_cache(maxsize=4096)
def _parameters(function: Callable) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _kwargs_of(function: Callable) -> str | None:
    """Name of the argument that takes all other keywords."""
    for parameter in _parameters(function).values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return parameter.name
    return None


def _has(function: Callable, key: str) -> bool | None:
    try:
        names = _parameters(function)
    except (TypeError, ValueError):
        return None
    if key in names:
        return True
    return None if _kwargs_of(function) else False


@lru_cache(maxsize=4096)
def _forwarded_by(init: Callable) -> str | None:
    """Class that ``super`` names if ``**kwargs`` go only to its ``__init__``.

    Empty if ``super`` names no class; None if the arguments go elsewhere, or
    that cannot be known.
    """
    try:
        name = _kwargs_of(init)
        tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
    except (OSError, SyntaxError, TypeError, ValueError):
        return None
    uses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == name
    ]
    forwarded = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith('super(')
        and ast.unparse(node.func).endswith(').__init__')
        for keyword in node.keywords
        if keyword.arg is None and ast.unparse(keyword.value) == name
    ]
    if not len(uses) == len(forwarded) == 1:
        return None
    named = forwarded[0].func.value.args
    return ast.unparse(named[0]) if named else ''


# What runners take out of a data loader's settings, or make themselves.
_OF_RUNNERS = {
    'dataset',
    'num_batch_per_epoch',
    'disable_subprocess_warning',
    '_scope_',
    '_delete_',
}
# Names of MMCV 1.x.
OLD_LOADER_KEYS = {
    'samples_per_gpu': 'batch_size',
    'workers_per_gpu': 'num_workers',
}


def unknown_loader_keys(
    loader: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    """Arguments of a data loader that neither runners nor PyTorch take.

    Args:
        loader: Such as ``train_dataloader`` of a config.

    Yields:
        Each, and the name that it may be meant for; empty for none.
    """
    # Not at the top: torch takes a second to load.
    from torch.utils.data import DataLoader

    known = {*inspect.signature(DataLoader).parameters, *_OF_RUNNERS}
    for key in loader:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1, 0.7)
            yield key, OLD_LOADER_KEYS.get(key) or ''.join(near)


def rate_factor(ratio: float, optimizer: str, rule: str | None) -> float:
    """What a learning rate is multiplied by for another number of images.

    Args:
        ratio: Images a step over those that the rate is for.
        optimizer: Name of its class.
        rule: ``auto_scale_lr.rule``: ``'linear'`` or ``'sqrt'``; None for the
            square root for optimizers of Adam's kind, else linear.
    """
    if rule not in (None, 'linear', 'sqrt'):
        raise ValueError(
            f"auto_scale_lr.rule must be 'linear' or 'sqrt', got {rule!r}"
        )
    root = rule == 'sqrt' if rule else 'adam' in optimizer.lower()
    return math.sqrt(ratio) if root else ratio
