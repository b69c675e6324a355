"""Refuse configs whose bases are no regular files, before they are opened."""

import ast
from collections.abc import Iterator
from pathlib import Path

from .files import require_regular_file


def require_regular_bases(file: str | Path) -> None:
    """Raise OSError if a config, or a base of it, is a FIFO or a device.

    MMEngine opens a base to look at it, which would wait for a FIFO for
    ever. Bases that are computed, or in a package, are left to MMEngine.
    """
    todo, seen = [Path(file)], set()
    while todo:
        path = todo.pop()
        require_regular_file(path)
        if path in seen or path.suffix != '.py' or not path.is_file():
            continue
        seen.add(path)
        todo += [path.parent / base for base in _bases(path)]


def _bases(path: Path) -> Iterator[str]:
    """Bases that a Python config names in words, in this folder or below."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        # Reading the config says what is wrong with it.
        return
    for statement in tree.body:
        targets = getattr(statement, 'targets', ())
        if any(getattr(target, 'id', '') == '_base_' for target in targets):
            for node in ast.walk(statement.value):
                value = getattr(node, 'value', None)
                if isinstance(value, str) and '::' not in value:
                    yield value
