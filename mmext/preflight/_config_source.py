"""Write values as the source of a config."""

import ast
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from ._config_values import Steps

__all__ = ['ConfigWriter', 'is_argument_name', 'source_of']

_WIDTH = 79
# Between the braces of those that MMEngine would replace.
_BRACES = re.compile(r'(?<=\{)(?=\{)')


class ConfigWriter:
    """Writes values as lines of a config, with a comment where a key is.

    Args:
        comments: For keys, what to say above them. Each is said once.
    """

    def __init__(self, comments: Mapping[Steps, str]) -> None:
        self._comments = dict(comments)

    def assignment(self, name: str, value: Any) -> Iterator[str]:
        """Lines of ``name = value``.

        Args:
            name: Of a top-level key.
            value: Of plain types.

        Yields:
            Lines, without their ends.

        Raises:
            TypeError: If a value is of another type.
        """
        yield from self.comment((name,))
        yield from self._value(f'{name} = ', value, (name,), '', '')

    def comment(self, steps: Steps, indent: str = '') -> Iterator[str]:
        """Lines of the comment of a key; none if there is none.

        Args:
            steps: The key.
            indent: Blanks before each line.
        """
        said = self._comments.pop(steps, '')
        yield from textwrap.wrap(
            ' '.join(said.split()),
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
        opening, closing, items = _parts(value)
        yield f'{indent}{start}{opening}'
        for step, before, item in items:
            yield from self.comment((*steps, step), f'{indent}    ')
            yield from self._value(
                before, item, (*steps, step), f'{indent}    ', ','
            )
        yield f'{indent}{closing}{end}'


def _is_long(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) and bool(value)


def _parts(value: Any) -> tuple[str, str, list[tuple[Any, str, Any]]]:
    if isinstance(value, dict):
        if all(is_argument_name(key) for key in value):
            return 'dict(', ')', [(k, f'{k}=', v) for k, v in value.items()]
        items = [(k, f'{source_of(k)}: ', v) for k, v in value.items()]
        return '{', '}', items
    opening, closing = '[]' if isinstance(value, list) else '()'
    return opening, closing, [(i, '', v) for i, v in enumerate(value)]


def is_argument_name(key: Any) -> bool:
    """Whether ``dict(key=...)`` is Python.

    Examples:
        >>> [is_argument_name(each) for each in ('a', 'if', 'a.b', 1)]
        [True, False, False, False]
    """
    # `dict(self=...)` is fine; keywords of Python are not.
    if not isinstance(key, str) or not key.isidentifier():
        return False
    try:
        ast.parse(f'dict({key}=1)')
    except SyntaxError:
        return False
    return True


def source_of(value: Any, steps: Steps = ()) -> str:
    """A value on one line, as a config has it.

    Args:
        value: Of plain types.
        steps: Its key, for the message.

    Returns:
        Python that gives the value back when MMEngine reads it.

    Raises:
        TypeError: If it is none of the plain types of configs.

    Examples:
        >>> print(source_of({'a': 1, 'b': ('{{x}}',)}))
        dict(a=1, b=('{' '{x}}',))
    """
    if isinstance(value, dict | list | tuple):
        opening, closing, items = _parts(value)
        texts = [
            f'{before}{source_of(item, (*steps, step))}'
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
    raise TypeError(
        f'{".".join(map(str, steps))} must be of dicts, lists, tuples, '
        f'strings, numbers, True, False and None, got {value!r}; write the '
        'config that inherits the other by hand'
    )
