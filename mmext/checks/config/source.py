"""Values of a config as its Python source."""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .walk import Steps, join_key

_WIDTH = 79
# Between the braces of those that MMEngine would replace.
_BRACES = re.compile(r'(?<=\{)(?=\{)')


class ConfigWriter:
    """Writes values as lines of a config, with comments above some keys.

    Each comment is written once.
    """

    def __init__(self, comments: Mapping[Steps, str]) -> None:
        self._comments = dict(comments)

    def assignment(self, name: str, value: Any) -> Iterator[str]:
        """Lines of ``name = value``; TypeError as :func:`source_of`."""
        yield from self.comment((name,))
        yield from self._value(f'{name} = ', value, (name,), '', '')

    def comment(self, steps: Steps, indent: str = '') -> Iterator[str]:
        """Lines of the comment of a key, if it has one."""
        text = self._comments.pop(steps, '')
        yield from textwrap.wrap(
            ' '.join(text.split()),
            _WIDTH,
            initial_indent=f'{indent}# ',
            subsequent_indent=f'{indent}# ',
            break_long_words=False,
        )

    def _value(
        self, start: str, value: Any, steps: Steps, indent: str, end: str
    ) -> Iterator[str]:
        line = f'{indent}{start}{source_of(value, steps)}{end}'
        inside = any(
            known[: len(steps)] == steps and known != steps
            for known in self._comments
        )
        if not inside and (len(line) <= _WIDTH or not _is_long(value)):
            yield line
            return
        opening, closing, items = _items(value)
        yield f'{indent}{start}{opening}'
        for step, before, item in items:
            yield from self.comment((*steps, step), f'{indent}    ')
            yield from self._value(
                before, item, (*steps, step), f'{indent}    ', ','
            )
        yield f'{indent}{closing}{end}'


def _is_long(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) and bool(value)


def _items(value: Any) -> tuple[str, str, list[tuple[Any, str, Any]]]:
    """Brackets of a container; key, source before the value, and value."""
    if isinstance(value, Mapping):
        if all(is_argument_name(key) for key in value):
            return 'dict(', ')', [(k, f'{k}=', v) for k, v in value.items()]
        items = [(k, f'{source_of(k)}: ', v) for k, v in value.items()]
        return '{', '}', items
    opening, closing = '[]' if isinstance(value, list) else '()'
    return opening, closing, [(i, '', v) for i, v in enumerate(value)]


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


def source_of(
    value: Any,
    steps: Steps = (),
    other: Callable[[Any], str] | None = None,
) -> str:
    """Python on one line that gives a value back when MMEngine reads it.

    ``other`` writes what is not of the plain types of configs; without it
    such a value is a TypeError that names its key, ``steps``.

    Examples:
        >>> print(source_of({'a': 1, 'b': ('{{x}}',)}))
        dict(a=1, b=('{' '{x}}',))
    """
    if isinstance(value, Mapping | list | tuple):
        opening, closing, items = _items(value)
        texts = [
            f'{before}{source_of(item, (*steps, step), other)}'
            for step, before, item in items
        ]
        comma = ',' if isinstance(value, tuple) and len(value) == 1 else ''
        return f'{opening}{", ".join(texts)}{comma}{closing}'
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, str):
        # MMEngine replaces {{...}} in the text of a config.
        return ' '.join(map(repr, _BRACES.split(value)))
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if other is not None:
        return other(value)
    raise TypeError(
        f'{join_key(steps)} must be of dicts, lists, tuples, strings, '
        f'numbers, True, False and None, got {value!r}; write the config '
        'that inherits the other by hand'
    )


def config_lines(settings: Mapping[str, Any]) -> str:
    """Settings as lines of a config to show; a class is named by its module.

    Examples:
        >>> print(config_lines({'a': 1, 'b': {'c': 'd', 'e': [{'f': 2}]}}))
        a = 1
        b = dict(c='d', e=[dict(f=2)])
    """
    return '\n'.join(
        f'{key} = {source_of(value, (key,), _shown)}'
        for key, value in settings.items()
    )


def _shown(value: Any) -> str:
    if inspect.isclass(value):
        return repr(f'{value.__module__}.{value.__qualname__}')
    return repr(value)
