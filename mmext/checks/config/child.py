"""A config that inherits another and changes some keys of it.

The file that was given stays as it is. What is wrong in it is fixed in a
child, which gives for each change the rule that asked for it, and why.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmengine.config import Config

from ...utils.files import atomic_path
from .source import ConfigWriter, is_argument_name, source_of
from .walk import Steps, copy_tree, split_key

# Value of an option whose key is to be removed.
DELETE = '__delete__'

_MERGED = '_delete_'
_HEAD = '# Inherits a config, with the findings of a preflight fixed.'
# Keys by which configs themselves are written.
_RESERVED = {'_base_', _MERGED}
_RESERVED_NAMES = {'filename', 'text', 'env_variables', 'dict', 'float'}


def apply_options(
    tree: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """A copy of a config, as dicts, with some keys set.

    A dict is merged into one that is there, unless it says ``_delete_=True``;
    any other value takes the place of the old one; :data:`DELETE` removes the
    key. Dicts on the way to a key are made, also in place of None.
    """
    changed = copy_tree(tree)
    for key, value in options.items():
        steps = split_key(key)
        name = steps[0]
        if (
            '' in steps
            or _RESERVED & set(steps)
            or name in _RESERVED_NAMES
            or not is_argument_name(name)
            or name.startswith('__')
        ):
            raise ValueError(
                f'options must have keys of a config, got {key!r}'
            )
        _set(changed, steps, copy_tree(value), key)
    return changed


def _set(node: Any, steps: Steps, value: Any, key: str) -> None:
    for step in steps[:-1]:
        if isinstance(node, dict):
            name = _name(step, node)
            if node.get(name) is None and not _is_delete(value):
                node[name] = {}
            node = node.setdefault(name, {})
        else:
            node = node[_index(node, step, key)]
    last = steps[-1]
    if not isinstance(node, dict):
        index = _index(node, last, key)
        if _is_delete(value):
            raise ValueError(
                f'options cannot remove {key!r} from a list; set the list'
            )
        node[index] = _merged(node[index], value)
    elif _is_delete(value):
        node.pop(_name(last, node), None)
    else:
        last = _name(last, node)
        node[last] = _merged(node.get(last), value)


def _is_delete(value: Any) -> bool:
    return isinstance(value, str) and value == DELETE


def _name(step: str | int, node: Mapping) -> str | int:
    """Numbers may be keys of dicts, too."""
    return step if step in node else str(step)


def _index(node: Any, step: str | int, key: str) -> int:
    if not isinstance(node, list) or not isinstance(step, int):
        raise KeyError(
            f'{key!r} leads into {node!r}, which has no item {step!r}'
        )
    if not -len(node) <= step < len(node):
        raise KeyError(f'{key!r} leads to item {step} of {len(node)}')
    return step


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(new, dict):
        return new
    new = dict(new)
    if new.pop(_MERGED, False) or not isinstance(old, dict):
        return {key: _merged(None, value) for key, value in new.items()}
    return {
        **old,
        **{key: _merged(old.get(key), new[key]) for key in new},
    }


def is_same(one: Any, other: Any) -> bool:
    """Equal, with equal types: True is not 1, a tuple no list.

    The order of the keys of dicts does not matter.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            is_same(one[key], other[key]) for key in one
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other or (one != one and other != other)


def _changes(old: Mapping, new: Mapping) -> dict[str, Any]:
    """What to merge into ``old`` to have ``new``."""
    changes: dict[str, Any] = {}
    for key, value in new.items():
        if key not in old:
            changes[key] = value
        elif not is_same(old[key], value):
            changes[key] = _change(old[key], value)
    return changes


def _change(old: Any, new: Any) -> Any:
    if not isinstance(new, dict):
        return new
    if isinstance(old, dict) and set(old) <= set(new):
        return _changes(old, new)
    # Nothing but this takes a key of a base away, or another type.
    return {_MERGED: True, **new}


def _base_of(parent: str, folder: Path) -> str:
    """How a file in a folder names its base."""
    if '::' in parent:
        return parent
    path = os.path.relpath(Path(parent).resolve(), folder.resolve())
    return Path(path).as_posix()


def _load(text: str, folder: Path) -> dict[str, Any]:
    """What a config says that lies in a folder."""
    file = folder / 'config.py'
    file.write_text(text, encoding='utf-8')
    return Config.fromfile(file, import_custom_modules=False).to_dict()


def _comments(
    options: Mapping[str, Any], reasons: Mapping[str, str]
) -> dict[Steps, str]:
    comments = {}
    for key, reason in reasons.items():
        if key not in options:
            raise ValueError(
                f'reasons must be for keys of options, got {key!r} beside '
                f'{sorted(options)}'
            )
        comments[split_key(key)] = reason
    return comments


def _text(
    base: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    comments: Mapping[Steps, str],
) -> str:
    changes = _changes(old, new)
    lines = [_HEAD, f'_base_ = {source_of(base)}', '']
    left = dict(comments)
    for name in [key for key in old if key not in new]:
        lines += [
            *ConfigWriter(left).comment((name,)),
            f'_base_.pop({name!r})',
        ]
        left.pop((name,), None)
    writer = ConfigWriter(_shown(left, changes))
    for name, value in changes.items():
        lines += writer.assignment(name, value)
    return '\n'.join(lines) + '\n'


def _shown(
    comments: Mapping[Steps, str], changes: Mapping[str, Any]
) -> dict[Steps, str]:
    """Comments at keys that are written, else at what they are in."""
    shown: dict[Steps, str] = {}
    for steps, reason in comments.items():
        node: Any = changes
        depth = 0
        for step in steps:
            inside = (
                step in node
                if isinstance(node, dict)
                else isinstance(node, Sequence)
                and not isinstance(node, str)
                and isinstance(step, int)
            )
            if not inside:
                break
            node = node[step]
            depth += 1
        if depth:
            at = steps[:depth]
            shown[at] = ' '.join(filter(None, (shown.get(at), reason)))
    return shown


def write_child_config(
    parent: str,
    options: Mapping[str, Any],
    out: str | Path,
    *,
    reasons: Mapping[str, str],
    replace: bool = False,
) -> Path:
    """Write a config that inherits another, with changes.

    The file is loaded before it takes its place: it is exactly the parent
    with the options set.

    Args:
        parent: The config to inherit: a file, or a name such as
            ``'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'``.
        options: See :func:`apply_options`.
        out: File to write; it must not exist.
        reasons: For keys of ``options``, a comment: which rule asked for the
            change, and why.
        replace: The file may exist, and is replaced.

    Returns:
        The file.

    Raises:
        FileExistsError: If there is such a file.
        FileNotFoundError: If the parent does not exist.
        KeyError: As :func:`apply_options`.
        TypeError: If a value cannot be written as source.
        ValueError: As :func:`apply_options`; if ``reasons`` has a key that
            ``options`` lacks; if ``out`` does not end with ``.py``; or if
            the parent cannot be changed so by inheriting it.
    """
    out = Path(out)
    if out.suffix != '.py':
        raise ValueError(f'out must be a .py file, got {out}')
    if out.exists() and not replace:
        raise FileExistsError(f'out must be a new file, got {out}')
    if '::' not in parent and not Path(parent).is_file():
        raise FileNotFoundError(f'parent must be a config, got {parent}')
    if '::' not in parent and Config._is_lazy_import(parent):
        raise ValueError(
            f'parent must inherit by _base_, got {parent}, which imports; '
            'inherit it by hand, with read_base()'
        )
    comments = _comments(options, reasons)
    with TemporaryDirectory() as folder:
        base = _base_of(parent, Path(folder))
        old = _load(f'_base_ = {source_of(base)}\n', Path(folder))
        new = apply_options(old, options)
        text = _text(base, old, new, comments)
        got = _load(text, Path(folder))
    if not is_same(got, new):
        keys = sorted(_changes(got, new)) or sorted(set(got) - set(new))
        raise ValueError(
            f'{parent} cannot be changed by inheriting it: {keys} would be '
            'others than asked for; change the file itself'
        )
    text = _text(_base_of(parent, out.parent), old, new, comments)
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding='utf-8')
    return out
