"""The config that a checkpoint holds, without running it.

MMEngine stores it as text, ``Config.pretty_text``, and reads it by running
the text as Python. What it writes are plain assignments of values, which are
evaluated here one by one; anything else is refused. A value can still name
code: a module of ``custom_imports``, or a ``type`` such as ``os.system``,
which the registries import if nothing is registered by that name. So modules
must be of a known package or be loaded already, and types be registered.
"""

import ast
import copy
import math
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import mmengine.registry
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.utils import import_modules_from_strings

from .walk import join_key, walk_dicts

__all__ = ['read_stored_config']

_PACKAGES = ('mmcv', 'mmdet', 'mmengine', 'mmext', 'mmpretrain', 'mmseg')
_REMEDY = (
    'give the config file itself (--config), or, if you know where the '
    'checkpoint comes from, use --trust-checkpoint'
)
# What MMEngine writes apart from literals.
_NAMES = {'inf': math.inf, 'nan': math.nan}
_CALLS = {'dict': dict, 'range': range, 'slice': slice}


def _refuse(what: str) -> ValueError:
    return ValueError(
        f'the config that the checkpoint holds is not used: {what}, which '
        f'may run code; {_REMEDY}'
    )


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Value of an expression of literals, ``dict(...)`` and known names."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        items = [_value(item, names) for item in node.elts]
        kinds = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
        return kinds[type(node)](items)
    if isinstance(node, ast.Dict):
        result: dict = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if key is None:
                result.update(_value(item, names))
            else:
                result[_value(key, names)] = _value(item, names)
        return result
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _CALLS
    ):
        args = [_value(item, names) for item in node.args]
        options: dict[str, Any] = {}
        for keyword in node.keywords:
            item = _value(keyword.value, names)
            options.update(
                item if keyword.arg is None else {keyword.arg: item}
            )
        return _CALLS[node.func.id](*args, **options)
    raise _refuse(f'line {node.lineno} has {ast.unparse(node)[:80]!r}')


def _evaluate(text: str) -> dict[str, Any]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(
            'the config that the checkpoint holds cannot be read '
            f'({error}); {_REMEDY}'
        ) from error
    names = dict(_NAMES)
    cfg: dict[str, Any] = {}
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            name = statement.targets[0].id
            names[name] = cfg[name] = _value(statement.value, names)
        elif not (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
        ):
            raise _refuse(
                f'line {statement.lineno} has '
                f'{ast.unparse(statement).splitlines()[0][:80]!r}'
            )
    return cfg


def _check_imports(cfg: Config) -> None:
    """Import what the config asks for, of packages that are known."""
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    imports = [imports] if isinstance(imports, str) else list(imports)
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


def _types(cfg: Config) -> Iterator[tuple[str, str]]:
    """What would be built for inference: keys and types."""
    sections = {('model',): cfg.get('model')}
    for name in ('val_dataloader', 'test_dataloader'):
        loader = cfg.get(name)
        if isinstance(loader, Mapping):
            sections[name, 'dataset'] = loader.get('dataset')
    for section, node in sections.items():
        for path, part in walk_dicts(node, section):
            if isinstance(part.get('type'), str):
                yield join_key((*path, 'type')), part['type']


def _check_types(cfg: Config) -> None:
    """Raise if something that is built is not a registered component."""
    waiting: dict[str, tuple[str, str]] = {}
    for key, kind in _types(cfg):
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
                del waiting[name]
    for name, (scope, place) in waiting.items():
        # A name of no package is imported as a module, if there is one; else
        # it is none that a registry looks up, such as a layer of mmcv.ops.
        if scope or (name and find_spec(name) is not None):
            raise _refuse(f'{place}, which is not registered')


def _import_registry(scope: Any) -> None:
    if scope in _PACKAGES and find_spec(scope) is not None:
        import_module(f'{scope}.registry')


def read_stored_config(stored: str | Mapping, *, trust: bool) -> Config:
    """Make a config of what a checkpoint holds under ``meta['cfg']``.

    Args:
        stored: Text as ``Config.pretty_text``, or a mapping.
        trust: Run the text, whatever it does.

    Returns:
        The config; what its ``custom_imports`` name is imported.

    Raises:
        ValueError: If the text is more than assignments of values, imports
            modules of other packages than OpenMMLab's that are not loaded
            yet, or has types that are not registered, without ``trust``.
    """
    if not isinstance(stored, str):
        cfg = Config(copy.deepcopy(dict(stored)))
    elif trust:
        return Config.fromstring(stored, '.py')
    else:
        cfg = Config(_evaluate(stored))
    if trust:
        return cfg
    _check_imports(cfg)
    _check_types(cfg)
    return cfg
