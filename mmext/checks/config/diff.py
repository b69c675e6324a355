"""Changes of a config as a unified diff of its own file.

The text of the file is edited where it sets a key, and what comes out is
loaded: a diff is given only if the file then says exactly what was asked for.
"""

import ast
import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmengine.config import Config

from .child import DELETE, apply_options, is_same
from .places import BASE
from .source import ConfigWriter, source_of
from .walk import Steps, split_key

# What MMEngine puts in by the place of the file.
_BY_PLACE = re.compile(r'\{\{\s*file')


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
    text = path.read_text('utf-8')
    if _BY_PLACE.search(text):
        return ''
    try:
        if not _statements(text, BASE) and Config._is_lazy_import(str(path)):
            return ''
        new = text
        for key, value in options.items():
            new = _edited(new, split_key(key), value)
        fits = new != text and _says(path, text, new, options)
    except _CannotEditError:
        return ''
    if not fits:
        return ''
    lines = difflib.unified_diff(
        text.splitlines(),
        new.splitlines(),
        str(file),
        str(file),
        '',
        '',
        1,
        '',
    )
    return '\n'.join(lines) + '\n'


class _CannotEditError(ValueError):
    """There is no place in a file for a change."""


def _says(path: Path, text: str, new: str, options: Mapping[str, Any]) -> bool:
    """Whether an edited file is the old one with the options set."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        trees = []
        for each in (text, new):
            copy.write_text(_with_bases(each, path.parent), 'utf-8')
            try:
                cfg = Config.fromfile(copy, import_custom_modules=False)
            # A config is a program, and may raise anything.
            except Exception as error:
                raise _CannotEditError(str(error)) from error
            trees.append(cfg.to_dict())
    try:
        wanted = apply_options(trees[0], options)
    except (KeyError, ValueError) as error:
        raise _CannotEditError(str(error)) from error
    return is_same(trees[1], wanted)


def _with_bases(text: str, folder: Path) -> str:
    """The text of a config that can be loaded from any folder."""
    statements = _statements(text, BASE)
    if not statements:
        return text
    value = statements[-1].value
    try:
        bases = ast.literal_eval(value)
    except ValueError as error:
        raise _CannotEditError('_base_ is computed') from error
    several = isinstance(bases, list | tuple)
    bases = [
        base if '::' in base else str((folder / base).absolute())
        for base in (bases if several else [bases])
    ]
    start, end = _span(text, value)
    whole = source_of(bases if several else bases[0])
    return text[:start] + whole + text[end:]


def _statements(text: str, name: str) -> list[ast.Assign]:
    """Assignments of a file to a variable."""
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise _CannotEditError(str(error)) from error
    return [
        node
        for node in body
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
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
    statements = _statements(text, str(steps[0]))
    if not statements:
        return _at_the_end(text, steps, value, removed)
    if len(steps) == 1:
        statement = statements[-1]
        if removed:
            start, end = _span(text, statement)
            return text[:start] + text[end:].partition('\n')[2]
        return _replaced(text, statement.value, value)
    node: ast.AST = statements[-1].value
    for depth, step in enumerate(steps[1:], 1):
        items = _items(node)
        if step not in items:
            if removed:
                raise _CannotEditError(f'{step} is not there to remove')
            return _inserted(text, node, items, steps[depth:], value)
        entry, node = items[step]
        if depth == len(steps) - 1 and removed:
            return _without(text, *_span(text, entry, node))
    return _replaced(text, node, value)


def _items(node: ast.AST) -> dict[Any, tuple[ast.AST, ast.AST]]:
    """Of a dict or list in the text, by key: where each begins, its value."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == 'dict'
        and not node.args
    ):
        return {each.arg: (each, each.value) for each in node.keywords}
    if isinstance(node, ast.Dict):
        return {
            getattr(key, 'value', None): (key, value)
            for key, value in zip(node.keys, node.values)
        }
    if isinstance(node, ast.List | ast.Tuple):
        return {i: (each, each) for i, each in enumerate(node.elts)}
    raise _CannotEditError(f'{ast.dump(node)[:40]} is no dict')


def _replaced(text: str, node: ast.AST, value: Any) -> str:
    start, end = _span(text, node)
    return text[:start] + _source(value) + text[end:]


def _source(value: Any) -> str:
    try:
        return source_of(value)
    except TypeError as error:
        raise _CannotEditError(str(error)) from error


def _inserted(
    text: str,
    node: ast.AST,
    items: Mapping[Any, tuple[ast.AST, ast.AST]],
    steps: Steps,
    value: Any,
) -> str:
    """The text with one more key in a dict, behind those it has."""
    if isinstance(node, ast.List | ast.Tuple):
        raise _CannotEditError('a list has no keys')
    for step in reversed(steps[1:]):
        value = {step: value}
    name = steps[0]
    if isinstance(node, ast.Call):
        entry = f'{name}={_source(value)}'
    else:
        entry = f'{name!r}: {_source(value)}'
    if not items:
        end = _span(text, node)[1] - 1
        return text[:end] + entry + text[end:]
    first, last = next(iter(items.values())), list(items.values())[-1]
    end = _span(text, last[1])[1]
    comma = ', '
    if first[0].lineno > node.lineno:
        comma = ',\n' + ' ' * first[0].col_offset
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
        raise _CannotEditError('what is inherited is removed key by key')
    if removed:
        line = f'{BASE}.pop({name!r})'
    else:
        if not all(isinstance(step, str) for step in steps):
            raise _CannotEditError('items of inherited lists are not merged')
        for step in reversed(steps[1:]):
            value = {step: value}
        _source(value)
        line = '\n'.join(ConfigWriter({}).assignment(name, value))
    return text + ('' if text.endswith('\n') else '\n') + line + '\n'
