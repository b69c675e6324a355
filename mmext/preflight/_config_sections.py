"""Sections of a config, and what the components in them take."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from torch import nn

__all__ = [
    'SECTIONS',
    'UNREAD',
    'Section',
    'find_component',
    'place',
    'takes',
    'walk',
]

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
class Section:
    """A dict somewhere in a config.

    Attributes:
        path: Keys and indices that lead to it.
        cfg: The dict.
        scope: Registry scope in which its ``type`` is looked up.
        parent: The dict that it is in, None for a whole section.
    """

    path: tuple[str | int, ...]
    cfg: Mapping
    scope: str
    parent: 'Section | None' = None

    @property
    def name(self) -> str:
        """The key that it has, or that the list has that it is in."""
        return next(key for key in reversed(self.path) if isinstance(key, str))


def place(path: Sequence[str | int]) -> str:
    """A path in words.

    Examples:
        >>> place(('model', 'bbox_head', 0, 'with_cp'))
        'model.bbox_head[0].with_cp'
    """
    text = str(path[0])
    for step in path[1:]:
        text += f'[{step}]' if isinstance(step, int) else f'.{step}'
    return text


def walk(
    value: Any,
    path: tuple[str | int, ...],
    scope: str,
    parent: Section | None = None,
) -> Iterator[Section]:
    """All dicts in a value, the outer ones first.

    Args:
        value: Part of a config.
        path: Where it is.
        scope: Registry scope around it.
        parent: The dict that it is in.
    """
    if isinstance(value, Mapping):
        scope = value.get('_scope_') or scope
        parent = Section(path, value, scope, parent)
        yield parent
        for key, item in value.items():
            # The keys in custom_keys are names of parameters.
            if key != 'custom_keys':
                yield from walk(item, (*path, key), scope, parent)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from walk(item, (*path, index), scope, parent)


def find_component(
    kind: Any, registries: Sequence[Registry], scope: str
) -> Callable | None:
    """The class that a ``type`` names.

    Args:
        kind: The ``type``, a name or a class.
        registries: Root registries where it may be.
        scope: Registry scope of names without one.

    Returns:
        The class or function; None if it cannot be found here.
    """
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

    Args:
        component: The class or function.
        key: Name of the argument.
        forwards: Take it for granted that ``**kwargs`` goes to the base
            class.

    Returns:
        True or False; None if that depends on what is done with
        ``**kwargs``. Where these go to the base class and nowhere else, its
        arguments count.

    Examples:
        >>> takes(nn.Linear, 'bias'), takes(nn.Linear, 'with_cp')
        (True, False)
        >>> takes(lambda **options: options, 'with_cp') is None
        True
    """
    if not inspect.isclass(component):
        return _has(component, key)
    for base in component.__mro__:
        if base in (nn.Module, object):
            return False
        init = base.__dict__.get('__init__')
        if init is None:
            continue
        has = _has(init, key)
        if has is not None or not (forwards or _only_forwards(init)):
            return has
    return False


def _kwargs_of(function: Callable) -> str | None:
    """Name of the argument that takes all other keywords."""
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            return each.name
    return None


def _has(function: Callable, key: str) -> bool | None:
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if key in names:
        return True
    return None if _kwargs_of(function) else False


def _only_forwards(init: Callable) -> bool:
    """Whether ``**kwargs`` goes to ``super().__init__`` and nowhere else."""
    try:
        name = _kwargs_of(init)
        tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
    except (OSError, SyntaxError, TypeError, ValueError):
        return False
    uses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == name
    ]
    forwarded = [
        keyword
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith('super(')
        and ast.unparse(node.func).endswith(').__init__')
        for keyword in node.keywords
        if keyword.arg is None and ast.unparse(keyword.value) == name
    ]
    return len(uses) == len(forwarded) == 1
