"""Syntax trees of configs: what statements set, what they use, and values.

The text of a config may come from anywhere: it is parsed, never run.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .walk import Steps

BASE = '_base_'
# What MMEngine replaces in the text before it parses it.
_ENVIRONMENT = re.compile(r'\{\{\s*\$[^{}]*\}\}')
_IN_TEXT = re.compile(r'\{\{\s*_base_\.(\w+)')
# What MMEngine writes apart from literals.
_CALLS = {'dict': dict, 'range': range, 'slice': slice}


class Bound(NamedTuple):
    """A statement that sets something.

    Attributes:
        steps: What it sets: the variable, and the keys below it.
        value: The expression.
        line: Of the statement.
        merges: It leaves what it does not name as it is, as ``update`` does.
        inherited: It changes what the file inherits, ``_base_.x``.
    """

    steps: Steps
    value: ast.expr
    line: int
    merges: bool = False
    inherited: bool = False


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

    Args:
        text: The config.
        other: Gives the value of an expression that is none of literals,
            ``dict(...)`` and known names, or raises. It is asked about other
            statements, too.
        names: Values of names beside those that the text assigns.

    Raises:
        MemoryError, RecursionError, SyntaxError, ValueError: If it is no
            Python.
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
