"""Statements of a config file, and the way down into what they assign."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = [
    'BASE',
    'Bound',
    'Reached',
    'Steps',
    'bindings',
    'descend',
    'parse_text',
    'reference',
]

BASE = '_base_'
Steps = tuple[str | int, ...]

# What MMEngine replaces in the text before it parses it.
_ENVIRONMENT = re.compile(r'\{\{\s*\$[^{}]*\}\}')
# Variables that refer to each other.
_MAX_STEPS = 100


class Bound(NamedTuple):
    """A statement that sets something.

    Attributes:
        steps: What it sets: the variable, and the keys below it.
        value: The expression.
        line: Of the statement.
        merges: It leaves what it does not name as it is, as ``update`` does.
    """

    steps: Steps
    value: ast.expr
    line: int
    merges: bool = False


class Reached(NamedTuple):
    """How far down a key could be followed inside of one file.

    Attributes:
        line: Of the last part of the key that is there.
        rest: What is left of the key.
        base: Where in the base files to look for the rest; None if the file
            does not refer to them.
        replaces: What base files set there does not count.
    """

    line: int
    rest: Steps
    base: Steps | None = None
    replaces: bool = False


def parse_text(text: str) -> ast.Module:
    """Parse a config; environment variables in it count as 0.

    Args:
        text: Of a Python file.

    Returns:
        Its tree; an empty one if it is no Python.

    Examples:
        >>> len(parse_text('a = {{$PORT:1}}').body)
        1
        >>> len(parse_text('a = = 1').body)
        0
    """
    # Inside of quotes or not, it is Python, and lines stay what they are.
    text = _ENVIRONMENT.sub('0', text)
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def bindings(tree: ast.Module) -> list[Bound]:
    r"""All statements of a file that set something, in order.

    Args:
        tree: Of the file.

    Examples:
        >>> tree = ast.parse('a = b = 1\na.c[0] = 2\na.update(d=3)')
        >>> [each.steps for each in bindings(tree)]
        [('a',), ('b',), ('a', 'c', 0), ('a',)]
    """
    return list(_bindings(tree.body))


def _bindings(body: Sequence[ast.stmt]) -> Iterator[Bound]:
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _assigned(target, node.value, node.lineno)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _assigned(node.target, node.value, node.lineno)
        elif isinstance(node, ast.Expr):
            yield from _updated(node.value)
        elif isinstance(node, ast.If | ast.For | ast.While | ast.With):
            yield from _bindings(node.body)
            yield from _bindings(getattr(node, 'orelse', []))


def _assigned(target: ast.expr, value: ast.expr, line: int) -> Iterator[Bound]:
    steps = reference(target)
    if steps and steps != (BASE,):
        # `_base_.model.neck = ...` changes what the file inherits.
        yield Bound(steps[1:] if steps[0] == BASE else steps, value, line)


def _updated(call: ast.expr) -> Iterator[Bound]:
    """``x.update(...)`` as a statement."""
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr not in ('update', 'merge')
    ):
        return
    steps = reference(call.func.value)
    if steps:
        steps = steps[1:] if steps[0] == BASE else steps
        yield Bound(steps, _as_dict(call), call.lineno, True)


def _as_dict(call: ast.Call) -> ast.Call:
    """The same arguments, given to ``dict``."""
    name = ast.copy_location(ast.Name(id='dict', ctx=ast.Load()), call)
    made = ast.Call(func=name, args=call.args, keywords=call.keywords)
    return ast.copy_location(made, call)


def reference(node: ast.expr) -> Steps | None:
    """Variable and keys of ``x.a['b'][0]``; None of anything else.

    Args:
        node: An expression.
    """
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before, step = reference(node.value), node.attr
    elif isinstance(node, ast.Subscript):
        before, step = reference(node.value), _constant(node.slice)
    elif isinstance(node, ast.Set) and len(node.elts) == 1:
        # {{_base_.x}} is a set in a set to Python.
        inner = node.elts[0]
        if isinstance(inner, ast.Set) and len(inner.elts) == 1:
            return reference(inner.elts[0])
        return None
    else:
        return None
    if before is None or not isinstance(step, str | int):
        return None
    return (*before, step)


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return None


def descend(
    bound: Bound, steps: Steps, known: Sequence[Bound], imports: bool = False
) -> Reached:
    """Follow a key into the value of a statement.

    Args:
        bound: The statement.
        steps: What is left of the key below it.
        known: All statements of the file, for its variables.
        imports: A name that no statement sets is one of a base file.

    Returns:
        How far it went.
    """
    return _Descent(known, imports).run(bound, steps)


class _Descent:
    def __init__(self, known: Sequence[Bound], imports: bool) -> None:
        self._known = known
        self._imports = imports
        self._left = _MAX_STEPS

    def run(self, bound: Bound, steps: Steps) -> Reached:
        return self._go(bound.value, steps, bound.line, bound.line)

    def _go(
        self, node: ast.expr, rest: Steps, line: int, before: int
    ) -> Reached:
        """Go down.

        Args:
            node: Where it is.
            rest: Of the key.
            line: Of what was found so far.
            before: Variables are those that are set above this line.
        """
        self._left -= 1
        if not rest or self._left < 0:
            return Reached(line, rest, None, self._replaces(node))
        steps = reference(node)
        if steps is not None:
            return self._variable(steps, rest, line, before)
        items = _items(node)
        if items is None:
            return Reached(line, rest, None, True)
        for key, value, where in items:
            if key == rest[0]:
                found = self._go(value, rest[1:], where, before)
                deleted = self._replaces(node)
                return found._replace(replaces=found.replaces or deleted)
        for key, value, _ in items:
            if key is None:
                found = self._go(value, rest, line, before)
                if found.base is not None or len(found.rest) < len(rest):
                    return found
        return Reached(line, rest, None, self._replaces(node))

    def _variable(
        self, steps: Steps, rest: Steps, line: int, before: int
    ) -> Reached:
        """Go on in the statement that set a variable."""
        if steps[0] == BASE:
            return Reached(line, rest, steps[1:], True)
        wanted = (*steps, *rest)
        for each in reversed(self._known):
            common = len(each.steps)
            if each.line >= before or each.steps != wanted[:common]:
                continue
            found = self._go(each.value, wanted[common:], each.line, each.line)
            if len(found.rest) < len(rest) or found.base is not None:
                return found
            if not each.merges:
                return Reached(line, rest, None, found.replaces)
        base = steps if self._imports else None
        return Reached(line, rest, base, True)

    def _replaces(self, node: ast.expr) -> bool:
        """Whether a value takes the place of what the base has."""
        items = _items(node)
        if items is None or isinstance(node, ast.List | ast.Tuple):
            return reference(node) is None
        return any(
            key == '_delete_' and _constant(value) is True
            for key, value, _ in items
        )


def _items(
    node: ast.expr,
) -> list[tuple[str | int | None, ast.expr, int]] | None:
    """Key, value and line of each item; key None for ``**`` and the like."""
    if isinstance(node, ast.Dict):
        return [
            (
                None if key is None else _constant(key),
                value,
                (value if key is None else key).lineno,
            )
            for key, value in zip(node.keys, node.values)
        ]
    if isinstance(node, ast.List | ast.Tuple):
        if any(isinstance(each, ast.Starred) for each in node.elts):
            return []
        count = len(node.elts)
        ahead = [(i, each, each.lineno) for i, each in enumerate(node.elts)]
        return ahead + [(i - count, each, line) for i, each, line in ahead]
    if isinstance(node, ast.Call) and reference(node.func) == ('dict',):
        return [
            *((each.arg, each.value, each.lineno) for each in node.keywords),
            *((None, each, each.lineno) for each in node.args),
        ]
    return None
