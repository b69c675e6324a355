"""A child config, written as a person would: short, in the order it runs.

:mod:`.child` repeats whole lists of a base to change one item, and cannot
name a value once; a draft changes items in place, and has variables.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .source import source_of
from .walk import Steps, join_key

_WIDTH = 79


@dataclass(frozen=True)
class Variable:
    """A name in the place of a value, of one that was assigned before."""

    name: str


def _source(value: Any) -> str:
    return source_of(value, (), _name)


def _name(value: Any) -> str:
    if not isinstance(value, Variable):
        raise TypeError(
            'values of a config must be dicts, lists, tuples, strings, '
            f'numbers, True, False, None or variables, got {value!r}'
        )
    return value.name


def _packed(start: str, items: Sequence[str], end: str) -> list[str]:
    """A call or a tuple on one line, or with lines as full as they can be."""
    line = f'{start}{", ".join(items)}{end}'
    if len(line) <= _WIDTH:
        return [line]
    lines = [start, '']
    ends = [','] * (len(items) - 1) + [end]
    for item in map(''.join, zip(items, ends)):
        longer = f'{lines[-1]} {item}' if lines[-1] else f'    {item}'
        if lines[-1] and len(longer) > _WIDTH:
            lines.append(f'    {item}')
        else:
            lines[-1] = longer
    return lines


def _given(values: Mapping[str, Any]) -> list[str]:
    return [f'{key}={_source(value)}' for key, value in values.items()]


@dataclass
class _Update:
    """Keys of a dict in a base that are set in place."""

    steps: Steps
    first: tuple[str, ...]
    values: dict[str, Any]

    def lines(self) -> list[str]:
        """The statement."""
        start = f'_base_.{join_key(self.steps)}.update('
        return _packed(start, [*self.first, *_given(self.values)], ')')


@dataclass
class ConfigDraft:
    """What a child changes of its base.

    The file assigns the variables, then runs the statements, which change
    the base in place, and then assigns the settings, which are merged.

    Attributes:
        base: Settings of the base, as dicts.
        variables: Values by name, for :class:`Variable`.
        edits: Statements.
        settings: Values by the keys of the base.
        comments: One line for some keys of ``settings``.

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

    base: dict[str, Any]
    variables: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    edits: list['str | _Update'] = field(default_factory=list)
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
        self.edits += _assignment(f'_base_.{key}', value)

    def do(self, statement: str) -> None:
        """Add a statement."""
        self.edits.append(statement)

    def drop(self, steps: Steps) -> None:
        """Take a key of the base away."""
        *parents, last = steps
        place = '.'.join(filter(None, ('_base_', join_key(parents))))
        self.edits.append(f'{place}.pop({last!r})')

    def text(self, base: str, head: str) -> str:
        """The file.

        Args:
            base: How it names its base.
            head: What it is, as a comment.

        Raises:
            TypeError: If a value cannot be written as source.
        """
        lines = [
            *textwrap.wrap(
                f'# {head}',
                _WIDTH,
                subsequent_indent='# ',
                break_long_words=False,
                break_on_hyphens=False,
            ),
            f'_base_ = {base!r}',
            '',
        ]
        for name, value in self.variables.items():
            lines += _assignment(name, value)
        for edit in self.edits:
            lines += [edit] if isinstance(edit, str) else edit.lines()
        for name, value in self.settings.items():
            if name in self.comments:
                lines.append(f'# {self.comments[name]}')
            lines += _assignment(name, value)
        return '\n'.join(lines) + '\n'


def _assignment(name: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return _packed(f'{name} = dict(', _given(value), ')')
    if isinstance(value, tuple):
        end = ',)' if len(value) == 1 else ')'
        return _packed(f'{name} = (', [*map(source_of, value)], end)
    return [f'{name} = {_source(value)}']
