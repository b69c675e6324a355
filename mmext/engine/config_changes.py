"""Read the config that a checkpoint holds, and compare two configs.

The text is Python, and a checkpoint may come from anywhere: it is parsed and
never run.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..checks.config import Steps, join_key

# They say which run it is, not how it trains.
_OF_THE_RUN = {
    'experiment_name',
    'launcher',
    'load_from',
    'resume',
    'trust_checkpoint',
    'work_dir',
}
# More differences below one key are shown as one.
_MAX_ROWS = 6


@dataclass(frozen=True)
class ConfigChange:
    """A key whose value is another; ``-`` stands for none."""

    key: str
    before: Any
    now: Any


class _Other(str):
    """Text of an expression that is no plain value."""


def _value(node: ast.expr) -> Any:
    """Value of an expression, without evaluating anything."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {
            str(_value(key)): _value(value)
            for key, value in zip(node.keys, node.values, strict=True)
        }
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == 'dict'
        and not node.args
        and all(item.arg for item in node.keywords)
    ):
        return {item.arg: _value(item.value) for item in node.keywords}
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        if isinstance(inner, int | float):
            return -inner
    return _Other(ast.unparse(node))


def read_config_text(text: Any) -> dict[str, Any] | None:
    """Parse what ``Config.pretty_text`` has written.

    Returns None for what is no such text.

    Examples:
        >>> read_config_text("a = dict(b=[1, -2.5], c=print('hi'))")
        {'a': {'b': [1, -2.5], 'c': "print('hi')"}}
        >>> read_config_text('a = (')
    """
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        return {
            node.targets[0].id: _value(node.value)
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
        }
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        return None


def _differences(one: Any, other: Any, steps: Steps) -> Iterator[tuple]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _differences(
                one.get(key, '-'), other.get(key, '-'), (*steps, key)
            )
    elif isinstance(one, list) and isinstance(other, list):
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
    if isinstance(value, list):
        return '[' + ', '.join(str(_summary(item)) for item in value) + ']'
    return value


def config_changes(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[ConfigChange]:
    """Keys whose values differ; many below one key are one change."""
    found: dict[str, list[ConfigChange]] = {}
    for steps, old, new in _differences(before, now, ()):
        if steps[0] not in _OF_THE_RUN:
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
