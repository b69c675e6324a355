"""Values of a config as its Python source."""

import ast
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .walk import Steps, join_key

WIDTH = 79
# Between the braces of those that MMEngine would replace.
_BRACES = re.compile(r'(?<=\{)(?=\{)')


@dataclass(frozen=True)
class Variable:
    """A name in the place of a value, of one that was assigned before."""

    name: str


def is_argument_name(key: Any) -> bool:
    """Whether ``dict(key=...)`` is Python."""
    # `dict(self=...)` is fine; keywords of Python are not.
    if not isinstance(key, str) or not key.isidentifier():
        return False
    try:
        ast.parse(f'dict({key}=1)')
    except SyntaxError:
        return False
    return True


def _items(value: Any) -> tuple[str, str, list[tuple[Any, str, Any]]]:
    """Brackets of a container; key, source before the value, and value."""
    if isinstance(value, Mapping):
        if all(is_argument_name(key) for key in value):
            return 'dict(', ')', [(k, f'{k}=', v) for k, v in value.items()]
        items = [(k, f'{source_of(k)}: ', v) for k, v in value.items()]
        return '{', '}', items
    opening, closing = '[]' if isinstance(value, list) else '()'
    if closing == ')' and len(value) == 1:
        closing = ',)'
    return opening, closing, [(i, '', v) for i, v in enumerate(value)]


def source_of(value: Any, steps: Steps = (), shown: bool = False) -> str:
    """Python on one line that gives a value back when MMEngine reads it.

    A value that is not of the plain types of configs, or a
    :class:`Variable`, is a TypeError that names its key, ``steps``; to be
    ``shown`` only, a class is named by its module, and others by ``repr``.

    Examples:
        >>> print(source_of({'a': 1, 'b': ('{{x}}',)}))
        dict(a=1, b=('{' '{x}}',))
    """
    if isinstance(value, Mapping | list | tuple):
        opening, closing, items = _items(value)
        texts = [
            f'{before}{source_of(item, (*steps, step), shown)}'
            for step, before, item in items
        ]
        return f'{opening}{", ".join(texts)}{closing}'
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, str):
        # MMEngine replaces {{...}} in the text of a config.
        return ' '.join(map(repr, _BRACES.split(value)))
    if isinstance(value, Variable):
        return value.name
    if shown and inspect.isclass(value):
        return repr(f'{value.__module__}.{value.__qualname__}')
    if shown or value is None or isinstance(value, bool | int | float):
        return repr(value)
    raise TypeError(
        f'{join_key(steps) or "a value"} must be of dicts, lists, tuples, '
        f'strings, numbers, True, False and None, got {value!r}; write the '
        'config that inherits the other by hand'
    )


def lines_of(
    start: str, value: Any, end: str = '', indent: str = ''
) -> list[str]:
    """Lines of a value between two texts; TypeError as :func:`source_of`."""
    if not isinstance(value, Mapping | list | tuple) or not value:
        return [f'{indent}{start}{source_of(value)}{end}']
    opening, closing, items = _items(value)
    parts = [(before, item) for _, before, item in items]
    return packed(f'{indent}{start}{opening}', parts, closing + end, indent)


def packed(
    start: str, items: Sequence[tuple[str, Any]], end: str, indent: str = ''
) -> list[str]:
    """A call on one line, or with lines as full as they can be.

    ``items`` are what stands before each value, and the value.
    """
    texts = [f'{before}{source_of(value)}' for before, value in items]
    line = f'{start}{", ".join(texts)}{end}'
    if len(line) <= WIDTH:
        return [line]
    lines, has_room = [start], False
    ends = [','] * (len(items) - 1) + [end]
    for (before, value), after in zip(items, ends):
        own = lines_of(before, value, after, f'{indent}    ')
        longer = f'{lines[-1]} {own[0].strip()}'
        if has_room and len(own) == 1 and len(longer) <= WIDTH:
            lines[-1] = longer
        else:
            lines += own
        has_room = len(own) == 1
    return lines


def config_lines(settings: Mapping[str, Any]) -> str:
    """Settings as lines of a config to show; a class is named by its module.

    Examples:
        >>> print(config_lines({'a': 1, 'b': {'c': 'd', 'e': [{'f': 2}]}}))
        a = 1
        b = dict(c='d', e=[dict(f=2)])
    """
    return '\n'.join(
        f'{key} = {source_of(value, (key,), shown=True)}'
        for key, value in settings.items()
    )
