"""All dicts of a config, wherever they are."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

__all__ = ['Path', 'copy_tree', 'place', 'walk_dicts']

Path = tuple[str | int, ...]


def place(path: Sequence[str | int]) -> str:
    """A path in words.

    Args:
        path: Keys and indices.

    Examples:
        >>> place(('model', 'bbox_head', 0, 'with_cp'))
        'model.bbox_head[0].with_cp'
    """
    text = ''
    for step in path:
        if isinstance(step, int):
            text += f'[{step}]'
        else:
            text += f'.{step}' if text else str(step)
    return text


def walk_dicts(
    value: Any, path: Path = (), skip: Collection[str] = ()
) -> Iterator[tuple[Path, Mapping]]:
    """All dicts in a value, the outer ones first.

    Args:
        value: Dicts, lists, tuples and plain values.
        path: Where the value is.
        skip: Keys that are not looked into.

    Yields:
        The path of a dict, and the dict.

    Examples:
        >>> cfg = {'a': [{'b': 1}], 'c': {}}
        >>> [place(path) for path, _ in walk_dicts(cfg, ('model',))]
        ['model', 'model.a[0]', 'model.c']
    """
    if isinstance(value, Mapping):
        yield path, value
        for key, item in value.items():
            if key not in skip:
                yield from walk_dicts(item, (*path, key), skip)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from walk_dicts(item, (*path, index), skip)


def copy_tree(value: Any) -> Any:
    """A copy of dicts, lists and tuples; what they hold is shared.

    Configs may hold classes, functions, and even modules, of which some
    cannot be copied.

    Args:
        value: Dicts, lists, tuples and other values.

    Examples:
        >>> import os
        >>> tree = {'a': [1, {'b': os}]}
        >>> copy_tree(tree) == tree, copy_tree(tree)['a'] is tree['a']
        (True, False)
    """
    if isinstance(value, Mapping):
        return {key: copy_tree(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copy_tree(item) for item in value)
    return value
