"""Which variables the code of a config file reads."""

import ast
import re
from collections.abc import Iterator

from ._config_values import BASE, reference

__all__ = ['used_names']

_IN_TEXT = re.compile(r'\{\{\s*_base_\.(\w+)')


def used_names(tree: ast.Module) -> list[tuple[str, int]]:
    r"""Variables that a file reads, those of its bases included.

    Args:
        tree: Of the file.

    Returns:
        Names, each with the line of a use, in no order. Setting a part of a
        variable, or ``x.update(...)``, is no use of it.

    Examples:
        >>> tree = ast.parse('a = b\nc.update(d=_base_.e)\nc.f = 1')
        >>> sorted(name for name, _ in used_names(tree))
        ['b', 'e']
    """
    changed = {id(_root(node)) for node in _changed(tree)}
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        steps = reference(node) if isinstance(node, ast.expr) else None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = _IN_TEXT.findall(node.value)
            found += [(name, node.lineno) for name in names]
        elif steps and steps[0] == BASE and len(steps) == 2:
            found.append((str(steps[1]), node.lineno))
        elif (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in changed
        ):
            found.append((node.id, node.lineno))
    return [each for each in found if each[0] != BASE]


def _changed(tree: ast.Module) -> Iterator[ast.expr]:
    """What statements set, or update."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node.value.func


def _root(node: ast.expr) -> ast.expr:
    """The variable of ``x.a['b']``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node
