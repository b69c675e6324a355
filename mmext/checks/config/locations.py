"""Where a config sets a key: the file and the line, through its bases.

A config of MMEngine is a Python file that inherits others. What is wrong in
it is often not in the file that was given, but three bases below. The files
are parsed, never run; what a config computes is followed as far as its text
shows it. Syntax trees of configs are read here alone: what statements set,
what they use, and the values that MMEngine has written.
"""

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.fileio import load

from .walk import Steps, split_key

BASE = '_base_'
# What MMEngine replaces in the text before it parses it.
_ENVIRONMENT = re.compile(r'\{\{\s*\$[^{}]*\}\}')
_IN_TEXT = re.compile(r'\{\{\s*_base_\.(\w+)')
# What MMEngine writes apart from literals.
_CALLS = {'dict': dict, 'range': range, 'slice': slice}


class Bound(NamedTuple):
    """A statement that sets something."""

    steps: Steps  # What it sets: the variable, and the keys below it.
    value: ast.expr
    line: int
    # It leaves what it does not name as it is, as `update` does.
    merges: bool = False
    inherited: bool = False  # It changes what the file inherits, `_base_.x`.


def parse_text(text: str) -> ast.Module:
    """The tree of a config; empty if it is no Python."""
    # Inside of quotes or not, it is Python, and lines stay what they are.
    text = _ENVIRONMENT.sub('0', text)
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def bindings(tree: ast.Module) -> list[Bound]:
    """All statements of a file that set something, in order."""
    return list(_bindings(tree.body))


def _bindings(body: Sequence[ast.stmt]) -> Iterator[Bound]:
    for node in body:
        merges = False
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets = [target]
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=changed, attr='update' | 'merge')
                ) as value
            ):
                targets, merges = [changed], True
            case ast.If() | ast.For() | ast.While() | ast.With():
                yield from _bindings(node.body)
                yield from _bindings(getattr(node, 'orelse', []))
                continue
            case _:
                continue
        for target in targets:
            steps = reference(target)
            if steps and (merges or steps != (BASE,)):
                inherited = steps[0] == BASE
                rest = steps[inherited:]
                yield Bound(rest, value, node.lineno, merges, inherited)


def reference(node: ast.expr) -> Steps | None:
    """Variable and keys of ``x.a['b'][0]``; None for anything else."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=owner, attr=step):
            before = reference(owner)
        case ast.Subscript(value=owner, slice=index):
            before, step = reference(owner), constant(index)
        case ast.Set(elts=[ast.Set(elts=[inner])]):
            # {{_base_.x}} is a set in a set to Python.
            return reference(inner)
        case _:
            return None
    if before is None or not isinstance(step, str | int):
        return None
    return (*before, step)


def constant(node: ast.expr) -> object:
    """Value of a literal; None for anything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return None


def items_of(
    node: ast.expr,
) -> list[tuple[Any, ast.expr, ast.AST]] | None:
    """Key, value and beginning of each item of a dict or a list.

    What ``update`` is given counts as a dict. Items of a list are there by
    negative indices, too. The key of ``**`` and the like is None. None for
    anything else.
    """
    match node:
        case ast.Dict(keys=keys, values=values):
            return [
                (None if key is None else constant(key), value, key or value)
                for key, value in zip(keys, values)
            ]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            if any(isinstance(item, ast.Starred) for item in items):
                return []
            ahead = [(i, item, item) for i, item in enumerate(items)]
            return ahead + [(i - len(items), *rest) for i, *rest in ahead]
        case ast.Call(
            func=ast.Name(id='dict') | ast.Attribute(attr='update' | 'merge')
        ):
            return [
                *((word.arg, word.value, word) for word in node.keywords),
                *((None, value, value) for value in node.args),
            ]
    return None


def used_names(tree: ast.Module) -> list[tuple[str, int]]:
    """Variables that a file reads, its bases' included, with a line of a use.

    Setting a part of a variable, or ``x.update(...)``, is no use of it.
    """
    changed = set()
    for node in ast.walk(tree):
        targets = getattr(node, 'targets', [])
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            targets = [node.value.func]
        for target in targets:
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            changed.add(id(target))
    uses: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        steps = reference(node) if isinstance(node, ast.expr) else None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = _IN_TEXT.findall(node.value)
            uses += [(name, node.lineno) for name in names]
        elif steps and steps[0] == BASE and len(steps) == 2:
            uses.append((str(steps[1]), node.lineno))
        elif (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in changed
        ):
            uses.append((node.id, node.lineno))
    return [use for use in uses if use[0] != BASE]


def read_values(
    text: str,
    other: Callable[[ast.AST], Any],
    names: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What ``Config.pretty_text`` has written: assignments of values.

    ``other`` gives the value of an expression that is none of literals,
    ``dict(...)`` and known ``names``, or raises; it is asked about other
    statements, too. Text that is no Python is a MemoryError, RecursionError,
    SyntaxError or ValueError.
    """
    known, values = dict(names or {}), {}
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=node):
                known[name] = values[name] = _value(node, known, other)
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                other(statement)
    return values


def _value(
    node: ast.expr,
    names: Mapping[str, Any],
    other: Callable[[ast.AST], Any],
) -> Any:
    def inner(part: ast.expr) -> Any:
        return _value(part, names, other)

    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kinds = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
        return kinds[type(node)](map(inner, node.elts))
    if isinstance(node, ast.Dict):
        result: dict = {}
        for key, item in zip(node.keys, node.values, strict=True):
            result.update(
                inner(item) if key is None else {inner(key): inner(item)}
            )
        return result
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = inner(node.operand)
        if isinstance(number, int | float):
            return -number
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _CALLS
    ):
        options: dict[str, Any] = {}
        for word in node.keywords:
            item = inner(word.value)
            options.update(item if word.arg is None else {word.arg: item})
        return _CALLS[node.func.id](*map(inner, node.args), **options)
    return other(node)


_NO_BASES = (
    AssertionError,
    ImportError,
    NameError,
    OSError,
    SyntaxError,
    TypeError,
    ValueError,
)


class KeyLocation(NamedTuple):
    """Where a key is set."""

    file: str = ''  # The config file; empty if it is not known.
    line: int = 0  # In that file, from 1; 0 if it is not known.


def key_location(cfg: Config | str | Path, key: str) -> KeyLocation:
    """Find the file and the line that set a key of a config.

    Follows ``_base_`` (relative, ``mmdet::...``, lists), ``_base_.x`` and
    ``{{_base_.x}}``, variables, ``dict(...)``, and changes such as
    ``model['neck'] = ...`` or ``model.update(...)``. Configs with
    ``read_base()`` are followed by their imports.

    For a key that no file sets, such as a missing one, it is the location of
    the dict it would be in. Of YAML and JSON files the line is 0.

    Examples:
        >>> key_location(Config({'a': 1}), 'a')
        KeyLocation(file='', line=0)
    """
    file = cfg.filename if isinstance(cfg, Config) else str(cfg)
    if not file or not Path(file).is_file():
        return KeyLocation()
    stamps = {one: Path(one).stat().st_mtime_ns for one in config_files(file)}
    location = KeyLocation()
    level = _tree(str(Path(file)), tuple(stamps.items()))
    for step in split_key(key):
        if step not in level:
            break
        location, level, _ = level[step]
    return location


def config_files(file: str | Path) -> list[str]:
    """A config file and what it inherits, each once, if it exists."""
    files: list[str] = []
    todo = [str(file)]
    while todo:
        path = todo.pop(0)
        if path not in files:
            files.append(path)
            todo += _file(path, Path(path).stat().st_mtime_ns).bases
    return files


class _Node(NamedTuple):
    """Where a value is set, and the values in it, as far as the text shows.

    It ``replaces`` what a base has there, or is merged with it.
    """

    location: KeyLocation
    items: dict[Any, '_Node']
    replaces: bool = False


def _over(
    old: Mapping[Any, _Node], new: Mapping[Any, _Node]
) -> dict[Any, _Node]:
    """Values put over others, as those of a config over its base's."""
    result = dict(old)
    for key, node in new.items():
        if key in old and not node.replaces:
            node = node._replace(items=_over(old[key].items, node.items))
        result[key] = node
    return result


class _Reader:
    """Follows the statements of a file, one after the other."""

    def __init__(self, file: '_File', base: dict[Any, _Node]) -> None:
        self._path = file.path
        self._base = base
        # What is imported is there by its name; else `_base_` has it.
        self.names = dict(base) if file.imports else {}
        for bound in file.bindings:
            level = base if bound.inherited else self.names
            location = KeyLocation(self._path, bound.line)
            *parents, last = bound.steps
            for step in parents:
                # What is not known is where what it is in is set.
                node = level.setdefault(step, _Node(location, {}))
                level, location = node.items, node.location
            node = self._node(bound.value, bound.line)
            if bound.merges:
                known = level.get(last, _Node(location, {}))
                node = known._replace(items=_over(known.items, node.items))
            level[last] = node
        if not file.imports:
            self.names = _over(base, self.names)

    def _node(self, value: ast.expr, line: int) -> _Node:
        """What a value is; files of data have no lines."""
        location = KeyLocation(self._path, line)
        steps = reference(value)
        if steps is not None:
            return self._variable(steps)._replace(location=location)
        items = items_of(value)
        replaces = items is None or isinstance(value, ast.List | ast.Tuple)
        inside: dict[Any, _Node] = {}
        for key, item, entry in items or ():
            node = self._node(item, line and entry.lineno)
            if key is None:
                inside = node.items | inside
            else:
                inside[key] = node
                replaces |= key == '_delete_' and constant(item) is True
        return _Node(location, inside, replaces)

    def _variable(self, steps: Steps) -> _Node:
        """A variable as it is now, or a part of it."""
        level = self.names
        if steps[0] == BASE:
            level, steps = self._base, steps[1:]
        node = _Node(KeyLocation(), {})
        for step in steps:
            node = level.get(step, _Node(KeyLocation(), {}))
            level = node.items
        return node


@lru_cache(maxsize=64)
def _tree(
    path: str, stamps: tuple[tuple[str, int], ...]
) -> Mapping[Any, _Node]:
    """All that a file and its bases set; made anew when one has changed."""
    return _read(path, dict(stamps), ())


def _read(
    path: str, stamps: Mapping[str, int], above: tuple[str, ...]
) -> dict[Any, _Node]:
    file, base = _file(path, stamps[path]), {}
    above = (*above, path)
    for other in file.bases:
        # Files may inherit each other in a circle.
        if other not in above:
            base = _over(base, _read(other, stamps, above))
    return _Reader(file, base).names


class _File:
    """One config file, parsed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._imported: list[str] = []
        if path.endswith('.py'):
            text = Path(path).read_text(encoding='utf-8')
            tree = parse_text(text)
            self.bindings = bindings(tree)
            self._imported = list(_imported_files(tree, path))
        else:
            data = load(path)
            items = data.items() if isinstance(data, Mapping) else ()
            self.bindings = [
                Bound((key,), ast.parse(repr(value), mode='eval').body, 0)
                for key, value in items
            ]

    @property
    def imports(self) -> bool:
        """Whether it inherits by ``read_base()``."""
        return bool(self._imported)

    @cached_property
    def bases(self) -> list[str]:
        """Files that it inherits, those that exist."""
        files = [*self._named_files(), *self._imported]
        paths = [os.path.normpath(file) for file in files]
        return [path for path in paths if Path(path).is_file()]

    def _named_files(self) -> list[str]:
        try:
            return [
                Config._get_cfg_path(name, self.path)[0]
                for name in Config._get_base_files(self.path)
            ]
        except _NO_BASES:
            # Such a config cannot be loaded: that says why.
            return []


def _imported_files(tree: ast.Module, path: str) -> Iterator[str]:
    """Files from which ``with read_base():`` imports."""
    for node in tree.body:
        for statement in node.body if isinstance(node, ast.With) else ():
            if (
                not isinstance(statement, ast.ImportFrom)
                or not statement.module
            ):
                continue
            parts = statement.module.split('.')
            if statement.level:
                folder = Path(path).parents[statement.level - 1]
            else:
                origin = util.find_spec(parts.pop(0))
                if origin is None or not origin.origin:
                    continue
                folder = Path(origin.origin).parent
            yield str(folder.joinpath(*parts)) + '.py'


@lru_cache(maxsize=512)
def _file(path: str, changed: int) -> _File:
    """A file; parsed anew when it has changed."""
    return _File(path)
