"""Where a config sets a key: the file and the line, through its bases.

A config of MMEngine is a Python file that inherits others. What is wrong in
it is often not in the file that was given, but three bases below. The files
are parsed, never run; what a config computes is followed as far as its text
tells.
"""

import ast
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.fileio import load

from ._config_values import (
    Bound,
    Reached,
    Steps,
    bindings,
    descend,
    parse_text,
)

__all__ = ['KeyPlace', 'config_files', 'key_place', 'key_steps']

_PYTHON = '.py'
# Files that inherit each other in a circle.
_MAX_DEPTH = 50
_NO_BASES = (
    AssertionError,
    ImportError,
    NameError,
    OSError,
    SyntaxError,
    TypeError,
    ValueError,
)


class KeyPlace(NamedTuple):
    """Where a key is set.

    Attributes:
        file: The config file; empty if it is not known.
        line: In that file, from 1; 0 if it is not known.
    """

    file: str = ''
    line: int = 0


def key_steps(key: str) -> Steps:
    """The keys and indices that a dotted key is made of.

    Args:
        key: Such as ``'model.heads[0].num_classes'`` or
            ``'model.heads.0.num_classes'``.

    Returns:
        Strings, and integers for indices.

    Examples:
        >>> key_steps('model.heads[0].num_classes')
        ('model', 'heads', 0, 'num_classes')
    """
    words = re.sub(r'\[(-?\d+)\]', r'.\1', key).split('.')
    return tuple(
        int(word) if re.fullmatch(r'-?\d+', word) else word for word in words
    )


def key_place(cfg: Config | str | Path, key: str) -> KeyPlace:
    """Find the file and the line that set a key of a config.

    Follows ``_base_`` (relative, ``mmdet::...``, lists), ``_base_.x`` and
    ``{{_base_.x}}``, variables, ``dict(...)``, and changes such as
    ``model['neck'] = ...`` or ``model.update(...)``. Configs with
    ``read_base()`` are followed by their imports.

    Args:
        cfg: A config that was read from a file, or the file.
        key: Dotted, such as ``'model.backbone.with_cp'``.

    Returns:
        The place. For a key that no file sets, such as a missing one, that
        of the dict it would be in. Of YAML and JSON files the line is 0.
        Both parts are empty if there is no file, or it does not set any
        part of the key.

    Examples:
        >>> key_place(Config({'a': 1}), 'a')
        KeyPlace(file='', line=0)
    """
    file = cfg.filename if isinstance(cfg, Config) else str(cfg)
    if not file or not Path(file).is_file():
        return KeyPlace()
    steps = key_steps(key)
    found = _find(str(Path(file)), steps, 0)
    return found[1] if found else KeyPlace()


def config_files(file: str | Path) -> list[str]:
    """A config file and all that it inherits.

    Args:
        file: The config file.

    Returns:
        Paths, the file first; each once. Those that do not exist are left
        out.

    Raises:
        FileNotFoundError: If the file itself does not exist.
    """
    found: list[str] = []
    todo = [str(file)]
    while todo:
        path = todo.pop(0)
        if path not in found:
            found.append(path)
            todo += _file(path, Path(path).stat().st_mtime_ns).bases
    return found


# How many steps of the key were found, and where.
_Found = tuple[int, KeyPlace]


def _better(one: _Found | None, other: _Found | None) -> _Found | None:
    """The one that knows more steps of the key; the first if both do."""
    if one is None or (other is not None and other[0] > one[0]):
        return other
    return one


def _find(path: str, steps: Steps, depth: int) -> _Found | None:
    """Search a file, then its bases."""
    file = _file(path, Path(path).stat().st_mtime_ns)
    if file.data is not None:
        known = _known_steps(file.data, steps)
        best = (known, KeyPlace(path, 0)) if known else None
    else:
        best, alone = _find_in_python(file, steps, depth)
        if alone:
            return best
    if best and best[0] == len(steps):
        return best
    return _better(best, _find_in_bases(file, steps, depth))


def _find_in_bases(file: '_File', steps: Steps, depth: int) -> _Found | None:
    best: _Found | None = None
    for base in file.bases if depth < _MAX_DEPTH else ():
        best = _better(best, _find(base, steps, depth + 1))
    return best


def _find_in_python(
    file: '_File', steps: Steps, depth: int
) -> tuple[_Found | None, bool]:
    """What a file says, and whether its bases say nothing more."""
    best: _Found | None = None
    # The last change of a name is what counts.
    for bound in reversed(file.bindings):
        common = len(bound.steps)
        if bound.steps != steps[:common]:
            continue
        reached = descend(bound, steps[common:], file.bindings, file.imports)
        known = len(steps) - len(reached.rest)
        if bound.merges and known == common and reached.base is None:
            # `x.update(...)` that does not name the key says nothing of it.
            continue
        found = known, KeyPlace(file.path, reached.line)
        if reached.base is not None:
            found = _better(found, _follow(file, reached, known, depth))
        best = _better(best, found)
        if not bound.merges:
            return best, reached.replaces or file.imports
        if reached.replaces:
            return best, True
    return best, False


def _follow(
    file: '_File', reached: Reached, known: int, depth: int
) -> _Found | None:
    """Go where a value refers to a variable of a base."""
    steps = (*reached.base, *reached.rest)
    found = _find_in_bases(file, steps, depth)
    if found is None or found[0] <= len(reached.base):
        return None
    return known + found[0] - len(reached.base), found[1]


def _known_steps(value: Any, steps: Steps) -> int:
    """How many steps of a key there are in a value."""
    for number, step in enumerate(steps):
        inside = isinstance(value, Mapping) and step in value
        if isinstance(value, list) and isinstance(step, int):
            inside = -len(value) <= step < len(value)
        if not inside:
            return number
        value = value[step]
    return len(steps)


class _File:
    """One config file, parsed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data: Mapping | None = None
        self.bindings: list[Bound] = []
        self._imported: list[str] = []
        if path.endswith(_PYTHON):
            text = Path(path).read_text(encoding='utf-8')
            tree = parse_text(text)
            self.bindings = bindings(tree)
            self._imported = list(_imported_files(tree, path))
        else:
            data = load(path)
            self.data = data if isinstance(data, Mapping) else {}

    @property
    def imports(self) -> bool:
        """Whether it inherits by ``read_base()``."""
        return bool(self._imported)

    @cached_property
    def bases(self) -> list[str]:
        """Files that it inherits, those that exist."""
        found = [*self._named_files(), *self._imported]
        paths = [os.path.normpath(each) for each in found]
        return [each for each in paths if Path(each).is_file()]

    def _named_files(self) -> list[str]:
        try:
            return [
                Config._get_cfg_path(name, self.path)[0]
                for name in Config._get_base_files(self.path)
            ]
        except _NO_BASES:
            # Such a config cannot be loaded: that says why.
            return []


def _imported_files(tree: ast.Module, path: str) -> Iterator[str]:
    """Files from which ``with read_base():`` imports."""
    for node in tree.body:
        for each in node.body if isinstance(node, ast.With) else ():
            if not isinstance(each, ast.ImportFrom) or not each.module:
                continue
            parts = each.module.split('.')
            if each.level:
                folder = Path(path).parents[each.level - 1]
            else:
                origin = util.find_spec(parts.pop(0))
                if origin is None or not origin.origin:
                    continue
                folder = Path(origin.origin).parent
            yield str(folder.joinpath(*parts)) + _PYTHON


@lru_cache(maxsize=512)
def _file(path: str, changed: int) -> _File:
    """A file; parsed anew when it has changed."""
    return _File(path)
