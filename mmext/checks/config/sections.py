"""Sections of a config, and what the components in them take."""

import ast
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

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

from ...utils.broken_libraries import BrokenLibraryError
from .walk import Steps, custom_imports, split_key, walk_dicts

_DATA = (DATASETS, DATA_SAMPLERS, TRANSFORMS, FUNCTIONS)
_METRICS = (METRICS, EVALUATOR)

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
}
# Top-level keys of MMCV 1.x -> what is read instead.
OLD_KEYS: dict[str, str] = {
    'data': 'train_dataloader, val_dataloader and test_dataloader (batch_size '
    'for samples_per_gpu, num_workers for workers_per_gpu, and dataset)',
    'optimizer': 'optim_wrapper.optimizer',
    'optimizer_config': 'optim_wrapper (clip_grad for grad_clip, '
    'accumulative_counts for cumulative_iters)',
    'lr_config': 'param_scheduler',
    'momentum_config': 'param_scheduler',
    'runner': 'train_cfg',
    'total_epochs': 'train_cfg.max_epochs',
    'total_iters': 'train_cfg.max_iters',
    'checkpoint_config': 'default_hooks.checkpoint',
    'log_config': 'default_hooks.logger and visualizer',
    'evaluation': 'train_cfg.val_interval and val_evaluator',
    'dist_params': 'env_cfg.dist_cfg',
    'resume_from': 'resume = True and load_from',
    'auto_resume': 'resume = True',
    'gpu_ids': 'CUDA_VISIBLE_DEVICES',
    'workflow': 'train_cfg',
    'fp16': "optim_wrapper.type = 'AmpOptimWrapper'",
    'seed': 'randomness.seed',
    'cudnn_benchmark': 'env_cfg.cudnn_benchmark',
}


@dataclass(frozen=True)
class ConfigNode:
    """A dict somewhere in a config."""

    path: Steps  # Keys and indices that lead to it.
    cfg: Mapping
    scope: str  # Registry scope in which its `type` is looked up.
    # The dict that it is in, None for a whole section.
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


def is_own_key(cfg: Mapping[str, Any], location: str) -> bool:
    """Whether ``own_keys`` of a config says that its own code reads a key.

    ``own_keys`` at the top level lists names of keys, such as ``'with_cp'``,
    for any location, or locations, such as ``'model.neck.with_cp'``; ``*``
    stands for any text.
    """
    own = cfg.get('own_keys', ())
    if not isinstance(own, list | tuple) or not all(
        isinstance(pattern, str) for pattern in own
    ):
        raise TypeError(
            "own_keys must be a list of keys, such as ['with_cp'], got "
            f'{own!r}'
        )
    name = split_key(location)[-1]
    return any(
        fnmatchcase(location, pattern) or fnmatchcase(str(name), pattern)
        for pattern in own
    )


def own_code_with(
    location: str, cfg: Mapping[str, Any], kinds: Iterable[Any]
) -> str:
    """A file of a project's own code that names a key; empty for none.

    Code of the project is what ``custom_imports`` name, and the modules of
    ``kinds``, components of the config, of other packages than known ones.
    """
    modules = custom_imports(cfg)
    classes = {base for kind in kinds for base in getattr(kind, '__mro__', ())}
    modules += sorted(base.__module__ for base in classes)
    own = tuple(
        f'{module}.'
        for module in map(str, modules)
        if module.partition('.')[0] not in (*_KNOWN, 'builtins')
    )
    word = re.compile(rf'\b{re.escape(str(split_key(location)[-1]))}\b')
    # Others are left alone: to ask a module that is lazy is to load it.
    names = [name for name in list(sys.modules) if f'{name}.'.startswith(own)]
    for name in sorted(names):
        file = getattr(sys.modules[name], '__file__', None) or ''
        if not file.endswith('.py'):
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
            except BrokenLibraryError:
                raise
            except (ImportError, RuntimeError):
                # Of a package that is not here: building it will say so, and
                # nothing is known about it until then.
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
    names = {base.__name__ for base in component.__mro__}
    after = ''
    for base in component.__mro__:
        if base.__module__ == 'torch.nn.modules.module':
            return False
        if base is object:
            # A base that is not here may have been replaced by `object`.
            own = len(component.__mro__) == 2
            return None if own and '__init__' in vars(component) else False
        init = base.__dict__.get('__init__')
        if after or init is None:
            # Passed over by `super(After, self)`.
            after = '' if base.__name__ == after else after
            continue
        has = _has(init, key)
        if has is not None:
            return has
        named = _kwargs_use(init).forwarded_by
        if named is None and not forwards:
            return None
        if named in names - {base.__name__}:
            after = named
    return False


def swallows(component: type, key: str) -> bool:
    """Whether a class takes an argument by ``**kwargs``, and drops it.

    It must neither hand these on nor name the argument in its code.
    """
    for base in component.__mro__:
        init = base.__dict__.get('__init__')
        if init is None or base is object:
            continue
        use = _kwargs_use(init)
        if _has(init, key) is not None:
            return False
        if use.forwarded_by is None:
            named = re.search(rf'\b{re.escape(key)}\b', use.text)
            return use.only_asked and not named
    return False


def _has(function: Callable, key: str) -> bool | None:
    try:
        parameters = _parameters(function)
    except (TypeError, ValueError):
        return None
    if key in parameters:
        return True
    return None if _kwargs_of(parameters) else False


@lru_cache(maxsize=4096)
def _parameters(function: Callable) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _kwargs_of(parameters: Mapping[str, inspect.Parameter]) -> str | None:
    """Name of the argument that takes all other keywords."""
    kinds = {parameter.kind: name for name, parameter in parameters.items()}
    return kinds.get(inspect.Parameter.VAR_KEYWORD)


class _Use(NamedTuple):
    """What an ``__init__`` does with its ``**kwargs``.

    ``forwarded_by`` is the class that ``super`` names if they go only to its
    ``__init__``, empty if it names none, and None if they go elsewhere, or
    that cannot be known. ``only_asked``: single names are looked up in them,
    and that is all.
    """

    text: str = ''
    forwarded_by: str | None = None
    only_asked: bool = False


@lru_cache(maxsize=4096)
def _kwargs_use(init: Callable) -> _Use:
    try:
        name = _kwargs_of(_parameters(init))
        text = textwrap.dedent(inspect.getsource(init))
        nodes = list(ast.walk(ast.parse(text)))
    except (OSError, SyntaxError, TypeError, ValueError):
        return _Use()
    uses = sum(isinstance(n, ast.Name) and n.id == name for n in nodes)
    asked, forwarded = 0, []
    for node in nodes:
        match node:
            case ast.Compare(comparators=holders):
                asked += sum(ast.unparse(h) == name for h in holders)
            case (
                ast.Subscript(value=ast.Name(id=holder))
                | ast.Call(
                    func=ast.Attribute(
                        value=ast.Name(id=holder), attr='get' | 'pop'
                    )
                )
            ):
                asked += holder == name
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Name(id='super'), args=args),
                    attr='__init__',
                ),
                keywords=keywords,
            ):
                forwarded += [
                    ast.unparse(args[0]) if args else ''
                    for word in keywords
                    if word.arg is None and ast.unparse(word.value) == name
                ]
    only = uses == len(forwarded) == 1
    return _Use(text, forwarded[0] if only else None, asked == uses)


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

    Each with the name that it may be meant for; empty for none.
    """
    # Not at the top: torch takes a second to load.
    from torch.utils.data import DataLoader

    known = {*inspect.signature(DataLoader).parameters, *_OF_RUNNERS}
    for key in loader:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1, 0.7)
            yield key, OLD_LOADER_KEYS.get(key) or ''.join(near)
