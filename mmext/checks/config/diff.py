"""Changes of a config as a unified diff of its own file.

The text of the file is edited where it sets a key, and what comes out is
loaded: a diff is given only if the file then says exactly what was asked for.
"""

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from .child import DELETE, apply_options, is_same, load_text
from .source import lines_of, source_of
from .syntax import BASE, items_of
from .walk import Steps, nest, split_key


def config_diff(file: str | Path, options: Mapping[str, Any]) -> str:
    """What to change in a config file to set some of its keys.

    A key that the file sets is changed there; one that it inherits is set at
    its end. Nothing is written.

    Args:
        file: Config; not of the kind that inherits by ``read_base()``.
        options: Dotted keys and their new values, see
            :func:`~mmext.checks.config.child.apply_options`.

    Returns:
        A unified diff. Empty if the file has no place where the change could
        be made and would have that effect alone; a child config, of
        :func:`~mmext.checks.config.write_child_config`, may still be able to.
    """
    path = Path(file)
    if path.suffix != '.py' or not path.is_file() or not options:
        return ''
    new = text = path.read_text('utf-8')
    try:
        if not _assignments(text, BASE) and Config._is_lazy_import(str(path)):
            return ''
        for key, value in options.items():
            new = _edited(new, split_key(key), value)
        wanted = apply_options(_load(text, path.parent), options)
        if new == text or not is_same(_load(new, path.parent), wanted):
            return ''
    # No Python; no such key; a value without source; not to be loaded.
    except (KeyError, SyntaxError, TypeError, ValueError):
        return ''
    lines = difflib.unified_diff(
        text.splitlines(),
        new.splitlines(),
        str(file),
        str(file),
        n=1,
        lineterm='',
    )
    return '\n'.join(lines) + '\n'


def _load(text: str, folder: Path) -> dict[str, Any]:
    try:
        return load_text(text, folder)
    # A config is a program, and may raise anything.
    except Exception as error:
        raise ValueError(str(error)) from error


def _assignments(text: str, name: str) -> list[ast.Assign]:
    """Assignments of a file to a variable."""
    return [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        and [ast.unparse(target) for target in node.targets] == [name]
    ]


def _span(text: str, *nodes: ast.AST) -> tuple[int, int]:
    """Where the first of some nodes begins, and the last one ends."""
    lines = text.splitlines(keepends=True)

    def index(line: int, column: int) -> int:
        # Columns of a tree count bytes.
        before = lines[line - 1].encode()[:column].decode()
        return sum(map(len, lines[: line - 1])) + len(before)

    first, last = nodes[0], nodes[-1]
    return (
        index(first.lineno, first.col_offset),
        index(last.end_lineno, last.end_col_offset),
    )


def _edited(text: str, steps: Steps, value: Any) -> str:
    """The text with a key set, or removed."""
    removed = isinstance(value, str) and value == DELETE
    statements = _assignments(text, str(steps[0]))
    if not statements:
        return _at_the_end(text, steps, value, removed)
    entry: ast.AST = statements[-1]
    node = statements[-1].value
    for depth, step in enumerate(steps[1:], 1):
        items = items_of(node) or []
        inside = [(e, item) for key, item, e in items if key == step]
        if not inside and not removed:
            parts = [(e, item) for _, item, e in items]
            return _inserted(text, node, parts, steps[depth:], value)
        if not inside:
            raise KeyError(f'{step} is not there to remove')
        entry, node = inside[-1]
    if removed and len(steps) == 1:
        start, end = _span(text, entry)
        return text[:start] + text[end:].partition('\n')[2]
    if removed:
        return _without(text, *_span(text, entry, node))
    start, end = _span(text, node)
    return text[:start] + source_of(value) + text[end:]


def _inserted(
    text: str,
    node: ast.expr,
    parts: Sequence[tuple[ast.AST, ast.expr]],
    steps: Steps,
    value: Any,
) -> str:
    """The text with one more key in a dict, behind those it has."""
    if items_of(node) is None or isinstance(node, ast.List | ast.Tuple):
        raise KeyError(f'{steps[0]} cannot be set in {ast.unparse(node)}')
    equals = f'{steps[0]}='
    if isinstance(node, ast.Dict):
        equals = f'{steps[0]!r}: '
    entry = equals + source_of(nest(steps[1:], value))
    if not parts:
        end = _span(text, node)[1] - 1
        return text[:end] + entry + text[end:]
    end = max(_span(text, item)[1] for _, item in parts)
    first, comma = parts[0][0], ', '
    if first.lineno > node.lineno:
        comma = ',\n' + ' ' * first.col_offset
    return text[:end] + comma + entry + text[end:]


def _without(text: str, start: int, end: int) -> str:
    """The text without a part, its comma, and the lines it leaves empty."""
    comma = re.compile(r'\s*,[ \t]*').match(text, end)
    if comma:
        end = comma.end()
    else:
        start -= len(text[:start]) - len(text[:start].rstrip(', \t\n'))
    line = text.rfind('\n', 0, start) + 1
    rest = re.compile(r'[ \t]*(#[^\n]*)?\n').match(text, end)
    if not text[line:start].strip() and rest:
        start, end = line, rest.end()
    elif text.startswith('\n', end):
        start = len(text[:start].rstrip(' \t'))
    return text[:start] + text[end:]


def _at_the_end(text: str, steps: Steps, value: Any, removed: bool) -> str:
    """The text with what it inherits changed."""
    name = str(steps[0])
    if removed and len(steps) > 1:
        raise KeyError('what is inherited is removed key by key')
    if not all(isinstance(step, str) for step in steps):
        raise KeyError('items of inherited lists are not merged')
    lines = [f'{BASE}.pop({name!r})']
    if not removed:
        lines = lines_of(f'{name} = ', nest(steps[1:], value))
    start = '' if text.endswith('\n') else '\n'
    return '\n'.join([f'{text}{start}'.rstrip('\n'), *lines, ''])
