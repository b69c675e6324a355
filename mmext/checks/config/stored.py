"""The config that a checkpoint holds, without running it.

MMEngine stores it as text, ``Config.pretty_text``, and reads it by running
the text as Python. What it writes are plain assignments of values, which are
evaluated here one by one; anything else is refused. A folder of
:func:`mmext.save_pretrained` has it as JSON, see :func:`config_to_json`. A
value can still name code: a module of ``custom_imports``, or a ``type`` such
as ``os.system``, which the registries import if nothing is registered by that
name. So modules must be of a known package or be loaded already, and types be
registered.
"""

import ast
import copy
import json
import math
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import mmengine.registry
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.utils import import_modules_from_strings

from .locations import read_values
from .walk import Steps, custom_imports, join_key, walk_dicts

_PACKAGES = ('mmcv', 'mmdet', 'mmengine', 'mmext', 'mmpretrain', 'mmseg')
# Whoever loads a shared model has these, too.
_INSTALLED = (*_PACKAGES, 'torch', 'torchvision')
_REMEDY = (
    'give the config file itself (--config), or, if you know where the '
    'checkpoint comes from, use --trust-checkpoint'
)
# They say which run it is, not how it trains.
OF_THE_RUN = (
    'experiment_name',
    'launcher',
    'load_from',
    'resume',
    'trust_checkpoint',
    'work_dir',
)
# What MMEngine writes apart from literals.
_NAMES = {'inf': math.inf, 'nan': math.nan}


def _refuse(what: str) -> ValueError:
    return ValueError(
        f'the config that the checkpoint holds is not used: {what}, which '
        f'may run code; {_REMEDY}'
    )


def _refuse_code(node: ast.AST) -> NoReturn:
    code = ast.unparse(node).splitlines()[0][:80]
    raise _refuse(f'line {node.lineno} has {code!r}')


def _check_imports(cfg: Config) -> None:
    """Import what the config asks for, of packages that are known."""
    imports = custom_imports(cfg)
    for name in imports:
        known = str(name).partition('.')[0] in _PACKAGES
        if not known and name not in sys.modules:
            raise _refuse(f'custom_imports names the module {name!r}')
    if imports:
        import_modules_from_strings(
            imports,
            allow_failed_imports=cfg.custom_imports.get(
                'allow_failed_imports', False
            ),
        )


def _registries() -> Iterator[Registry]:
    waiting = [
        item
        for item in vars(mmengine.registry).values()
        if isinstance(item, Registry)
    ]
    while waiting:
        registry = waiting.pop()
        yield registry
        waiting += registry.children.values()


def _built(cfg: Config) -> Iterator[tuple[Steps, Mapping]]:
    """All dicts of what would be built for inference, with their keys."""
    yield from walk_dicts(cfg.get('model'), ('model',))
    for name in ('val_dataloader', 'test_dataloader'):
        loader = cfg.get(name)
        if isinstance(loader, Mapping):
            yield from walk_dicts(loader.get('dataset'), (name, 'dataset'))


def _check_scopes(cfg: Config, loaded: bool = True) -> None:
    """Raise if a registry of another package would be imported.

    ``loaded``: One that is there already is in order.
    """
    scopes = [('default_scope', cfg.get('default_scope'))]
    for path, part in _built(cfg):
        scopes.append((join_key((*path, '_scope_')), part.get('_scope_')))
    for location, scope in scopes:
        if scope is None or scope in _PACKAGES:
            continue
        if not loaded or f'{scope}.registry' not in sys.modules:
            raise _refuse(f'{location} is {scope!r}, no package that is known')


def _check_types(cfg: Config, installed: bool = False) -> None:
    """Raise if something that is built is not a registered component.

    ``installed``: Nor of a package that others have, too.
    """
    waiting: dict[str, tuple[str, str]] = {}
    own: dict[str, str] = {}
    types = [
        (join_key((*path, name)), kind)
        for path, part in _built(cfg)
        for name, kind in part.items()
        # Such as the `resize_type` of a transform, too.
        if f'_{name}'.endswith('_type') and isinstance(kind, str)
    ]
    for key, kind in types:
        scope, _, name = kind.rpartition('.')
        if scope and scope not in _PACKAGES:
            raise _refuse(f'{key} is {kind!r}, of no known package')
        if scope or name not in waiting:
            waiting[name] = scope, f'{key} is {kind!r}'
        _import_registry(scope)
    _import_registry(cfg.get('default_scope'))
    for load in (False, True):
        for registry in _registries():
            if load and waiting:
                registry.import_from_location()
            for name in waiting.keys() & registry.module_dict.keys():
                home = registry.module_dict[name].__module__
                if not installed or home.partition('.')[0] in _INSTALLED:
                    del waiting[name]
                else:
                    own.setdefault(name, home)
    for name, home in own.items():
        if name in waiting:
            raise _no_data(waiting[name][1], f'of the module {home}')
    for name, (scope, location) in waiting.items():
        # A name of no package is imported as a module, if there is one; else
        # it is none that a registry looks up, such as a layer of mmcv.ops.
        if scope or (name and find_spec(name) is not None):
            raise _refuse(f'{location}, which is not registered')


def _import_registry(scope: Any) -> None:
    if scope in _PACKAGES and find_spec(scope) is not None:
        import_module(f'{scope}.registry')


def read_stored_config(stored: str | Mapping, *, trust: bool) -> Config:
    """Make a config of what a checkpoint holds under ``meta['cfg']``.

    That is text as ``Config.pretty_text``, or a mapping. What its
    ``custom_imports`` name is imported. With ``trust``, the text is run,
    whatever it does; without, ValueError if it is more than assignments of
    values, imports modules of other packages than OpenMMLab's that are not
    loaded yet, or has types that are not registered.
    """
    if not isinstance(stored, str):
        cfg = Config(copy.deepcopy(dict(stored)))
    elif trust:
        return Config.fromstring(stored, '.py')
    else:
        try:
            cfg = Config(read_values(stored, _refuse_code, _NAMES))
        except (SyntaxError, RecursionError) as error:
            raise ValueError(
                'the config that the checkpoint holds cannot be read '
                f'({error}); {_REMEDY}'
            ) from error
    if trust:
        return cfg
    _check_scopes(cfg)
    _check_imports(cfg)
    _check_types(cfg)
    return cfg


# As JSON ----------------------------------------------------------------

_TUPLE, _FLOAT, _ITEMS = '__tuple__', '__float__', '__items__'
_MARKS = (_TUPLE, _FLOAT, _ITEMS)
# By these, files and code of others are read.
_REFUSED = ('_base_', 'trust_remote_code')


def _no_data(key: str, what: str) -> ValueError:
    return ValueError(
        f'the config cannot be shared as data: {key or "it"} {what}; change '
        'it to values and to components of installed packages, or share the '
        'checkpoint and your code'
    )


def _to_json(value: Any, key: str) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, list | tuple):
        items = [_to_json(v, f'{key}[{i}]') for i, v in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    if isinstance(value, Mapping):
        items = [
            (_to_json(k, key), _to_json(v, f'{key}.{k}' if key else str(k)))
            for k, v in value.items()
        ]
        plain = all(isinstance(k, str) and k not in _MARKS for k, _ in items)
        return dict(items) if plain else {_ITEMS: [list(i) for i in items]}
    raise _no_data(key, f'is {value!r}'[:200] + ', which JSON cannot hold')


def config_to_json(cfg: Config) -> dict[str, Any]:
    """The values of a config, as JSON has them.

    What JSON lacks is a dict of one key: ``{'__tuple__': [1, 2]}``,
    ``{'__float__': 'inf'}``, and ``{'__items__': [[1, 'a']]}`` for a dict
    with keys that are no strings. Keys that say which run it was, such as
    ``work_dir``, are left out.

    Raises:
        ValueError: If a value is none that JSON can hold, such as a function
            or a class, or the config needs code that others do not have:
            modules of ``custom_imports``, or components of other packages
            than OpenMMLab's and torch. The message names the key.

    Examples:
        >>> config_to_json(Config(dict(a=(1, float('inf')))))
        {'a': {'__tuple__': [1, {'__float__': 'inf'}]}}
    """
    values = {k: v for k, v in cfg.to_dict().items() if k not in OF_THE_RUN}
    for name in custom_imports(cfg):
        if str(name).partition('.')[0] not in _PACKAGES:
            raise _no_data(
                f'custom_imports names {name!r},',
                'which is code of yours that others do not have',
            )
    _check_scopes(cfg, loaded=False)
    _check_types(cfg, installed=True)
    return _to_json(values, '')


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    mark = next(iter(value)) if len(value) == 1 else None
    if mark == _TUPLE:
        return tuple(map(_from_json, value[mark]))
    if mark == _FLOAT:
        return float(value[mark])
    if mark == _ITEMS:
        return {_from_json(k): _from_json(v) for k, v in value[mark]}
    return {key: _from_json(item) for key, item in value.items()}


def config_from_json(text: str) -> dict[str, Any]:
    """Read what :func:`config_to_json` made, and ``json.dumps`` wrote.

    Runs nothing; whether the config is one to build from is for
    ``read_config`` to see, to which it goes as ``meta['cfg']``.

    Raises:
        ValueError: If the text is no JSON or holds no dict, or a key by which
            code or files of others would be read.
    """
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError(f'it holds {type(value).__name__}, and no dict')
        value = _from_json(value)
        for path, part in walk_dicts(value):
            for name in _REFUSED:
                if name in part:
                    raise _refuse(f'it has the key {join_key((*path, name))}')
        return value
    except (RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error
