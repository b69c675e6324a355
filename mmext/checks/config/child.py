"""Change keys of a config, and write a config that inherits it with changes.

The file that was given stays as it is. What is wrong in it is fixed in a
child, which gives for each change the rule that asked for it, and why. Values
are written as Python source that MMEngine reads back as they are.
"""

import inspect
import keyword
import math
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmengine.config import Config

from ...utils.files import atomic_path
from ...utils.printing import printable
from .locations import BASE
from .walk import Steps, copy_tree, join_key, split_key

WIDTH = 79
# Between the braces of those that MMEngine would replace.
_BRACES = re.compile(r'(?<=\{)(?=\{)')


@dataclass(frozen=True)
class Variable:
    """A name in the place of a value, of one that was assigned before."""

    name: str


def is_argument_name(key: Any) -> bool:
    """Whether ``dict(key=...)`` is Python."""
    is_name = isinstance(key, str) and key.isidentifier()
    return is_name and not keyword.iskeyword(key)


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


# Value of an option whose key is to be removed.
DELETE = '__delete__'

_MERGED = '_delete_'
_HEAD = 'Inherits a config, with the findings of a preflight fixed.'
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


@dataclass
class _Update:
    """Keys of a dict in a base that are set in place."""

    steps: Steps
    first: tuple[str, ...]
    values: dict[str, Any]

    def lines(self) -> list[str]:
        items = [('', Variable(name)) for name in self.first]
        items += [(f'{key}=', value) for key, value in self.values.items()]
        return packed(f'_base_.{join_key(self.steps)}.update(', items, ')')


@dataclass
class ConfigDraft:
    """What a child changes of its base.

    The file assigns the variables, then runs the statements, which change
    the base in place, and then assigns the settings, which are merged.

    Examples:
        >>> draft = ConfigDraft({'heads': [{'num_classes': 80}]})
        >>> draft.set(('heads', 0), num_classes=3)
        >>> draft.set(('train_cfg',), max_epochs=9)
        >>> print(draft.text('base.py', 'Three classes.'))
        # Three classes.
        _base_ = 'base.py'
        <BLANKLINE>
        _base_.heads[0].update(num_classes=3)
        train_cfg = dict(max_epochs=9)
        <BLANKLINE>
    """

    base: dict[str, Any]  # Settings of the base, as dicts.
    # Values by name, for `Variable`.
    variables: dict[str, Any] = field(default_factory=dict)
    # Values by the keys of the base.
    settings: dict[str, Any] = field(default_factory=dict)
    edits: list['str | _Update'] = field(default_factory=list)
    # For some keys of settings, lines of text.
    comments: dict[str, str] = field(default_factory=dict)

    def set(self, steps: Steps, **values: Any) -> None:
        """Set keys of a dict of the base, in place where it is in a list."""
        if any(isinstance(step, int) for step in steps):
            self.update(steps, **values)
            return
        node = self.settings
        for step in steps:
            node = node.setdefault(step, {})
        node.update(values)

    def update(self, steps: Steps, *first: str, **values: Any) -> None:
        """Set keys of a dict in place, first those of variables.

        A dict that is there is merged with one that is given.
        """
        for edit in self.edits:
            if isinstance(edit, _Update) and edit.steps == steps:
                edit.values.update(values)
                return
        self.edits.append(_Update(steps, first, values))

    def assign(self, key: str, value: dict) -> None:
        """Replace a dict of the base as a whole."""
        self.edits += lines_of(f'_base_.{key} = ', value)

    def do(self, statement: str) -> None:
        """Add a statement."""
        self.edits.append(statement)

    def drop(self, steps: Steps) -> None:
        """Take a key of the base away."""
        *parents, last = steps
        location = '.'.join(filter(None, ('_base_', join_key(parents))))
        self.edits.append(f'{location}.pop({last!r})')

    def text(self, base: str, head: str) -> str:
        """The file, which names its base so and begins with a comment.

        TypeError if a value cannot be written as source; of ``settings``, it
        names the key.
        """
        lines = [*_comment(head), f'_base_ = {source_of(base)}', '']
        for name, value in self.variables.items():
            lines += lines_of(f'{name} = ', value)
        for edit in self.edits:
            lines += [edit] if isinstance(edit, str) else edit.lines()
        for name, value in self.settings.items():
            source_of(value, (name,))
            for text in self.comments.get(name, '').splitlines():
                lines += _comment(text)
            lines += lines_of(f'{name} = ', value)
        return '\n'.join(lines) + '\n'


def _comment(text: str) -> Iterator[str]:
    """Lines of a text as a comment."""
    yield from textwrap.wrap(
        f'# {printable(text)}',
        WIDTH,
        subsequent_indent='# ',
        break_long_words=False,
        break_on_hyphens=False,
    )


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


def _loaded(parent: str, text: str) -> dict[str, Any]:
    """What a text says as a config that inherits another."""
    if '::' not in parent:
        parent = str(Path(parent).resolve())
    # The first one counts: the text may name its base from another folder.
    text = f'{BASE} = {source_of(parent)}\n{text}'
    with TemporaryDirectory() as temporary:
        file = Path(temporary, 'config.py')
        file.write_text(text, encoding='utf-8')
        return Config.fromfile(file, import_custom_modules=False).to_dict()


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
    with the options set, or else a ValueError.

    Args:
        parent: The config to inherit: a file, or a name such as
            ``'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'``.
        options: See :func:`apply_options`.
        out: File to write; it must not exist, unless it is to ``replace``.
        reasons: For keys of ``options``, a comment: which rule asked for the
            change, and why.
        replace: The file may exist.
    """
    out = Path(out)
    if out.suffix != '.py':
        raise ValueError(f'out must be a .py file, got {out}')
    if out.exists() and not replace:
        raise FileExistsError(f'out must be a new file, got {out}')
    if '::' not in parent and Config._is_lazy_import(parent):
        raise ValueError(
            f'parent must inherit by _base_, got {parent}, which imports; '
            'inherit it by hand, with read_base()'
        )
    base = parent
    if '::' not in parent:
        base = os.path.relpath(Path(parent).resolve(), out.parent.resolve())
        base = Path(base).as_posix()
    old = _loaded(parent, '')
    new = apply_options(old, options)
    text = _draft(old, new, reasons).text(base, _HEAD)
    got = _loaded(parent, text)
    if not is_same(got, new):
        keys = sorted(_changes(got, new)) or sorted(set(got) - set(new))
        raise ValueError(
            f'{parent} cannot be changed by inheriting it: {keys} would be '
            'others than asked for; change the file itself'
        )
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding='utf-8')
    return out


def _draft(
    old: dict[str, Any], new: Mapping[str, Any], reasons: Mapping[str, str]
) -> ConfigDraft:
    """What makes a config another one, with the reasons above each change."""
    draft = ConfigDraft(old, settings=_changes(old, new))
    for key, reason in reasons.items():
        name = str(split_key(key)[0])
        lines = draft.comments.get(name, '')
        text = ' '.join(reason.split())
        draft.comments[name] = f'{lines}{text}\n'
    for name in [key for key in old if key not in new]:
        for text in draft.comments.get(name, '').splitlines():
            draft.edits += _comment(text)
        draft.drop((name,))
    return draft
