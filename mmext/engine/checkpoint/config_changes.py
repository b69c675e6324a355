"""Read the config that a checkpoint holds, and compare two configs.

The text is Python, and a checkpoint may come from anywhere: it is parsed and
never run.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...checks.config import OF_THE_RUN, Steps, join_key, read_values

# More differences below one key are shown as one.
_MAX_ROWS = 6


@dataclass(frozen=True)
class ConfigChange:
    """A key whose value is another; ``-`` stands for none."""

    key: str
    before: Any
    now: Any


def read_config_text(text: Any) -> dict[str, Any] | None:
    """Parse what ``Config.pretty_text`` has written.

    An expression that is no plain value is its text. Returns None for what is
    no such text.

    Examples:
        >>> read_config_text("a = dict(b=[1, -2.5], c=print('hi'))")
        {'a': {'b': [1, -2.5], 'c': "print('hi')"}}
        >>> read_config_text('a = (')
    """
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        return read_values(text, ast.unparse)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return None


def _differences(one: Any, other: Any, steps: Steps) -> Iterator[tuple]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _differences(
                one.get(key, '-'), other.get(key, '-'), (*steps, key)
            )
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) == len(other):
            for index, pair in enumerate(zip(one, other, strict=True)):
                yield from _differences(*pair, (*steps, index))
        else:
            yield steps, _summary(one), _summary(other)
    elif one != other:
        yield steps, _summary(one), _summary(other)


def _summary(value: Any) -> Any:
    """A component by its type, a list by its entries."""
    if isinstance(value, Mapping):
        rest = ', '.join(
            f'{key}={_summary(item)}'
            for key, item in value.items()
            if key != 'type'
        )
        return f'{value.get("type", "dict")}({rest})'
    if isinstance(value, list | tuple):
        return '[' + ', '.join(str(_summary(item)) for item in value) + ']'
    return value


def config_changes(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[ConfigChange]:
    """Keys whose values differ; many below one key are one change."""
    found: dict[str, list[ConfigChange]] = {}
    for steps, old, new in _differences(before, now, ()):
        if steps[0] not in OF_THE_RUN:
            change = ConfigChange(join_key(steps), old, new)
            found.setdefault(join_key(steps[:2]), []).append(change)
    return [
        change
        for section, changes in found.items()
        for change in (
            changes
            if len(changes) <= _MAX_ROWS
            else [
                ConfigChange(section, f'{len(changes)} settings', 'are others')
            ]
        )
    ]
