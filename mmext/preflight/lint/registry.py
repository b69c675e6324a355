"""The list of lint rules: what is looked for in a config.

A rule is a generator function in a file of its family::

    @lint_rule(
        'KEY900',
        title='a key is blue',
        severity=Severity.WARNING,
        remedy='paint it',
    )
    def blue_key(subject):
        for key in subject.top:
            if key == 'blue':
                yield Note('blue is blue', path=(key,))

Ids are stable: an id that is not used any more is not given anew.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any

import msgspec

from ..findings import Severity

__all__ = [
    'LINT_RULES',
    'LintRule',
    'Note',
    'describe_lint_rules',
    'lint_rule',
]

_ID = re.compile(r'[A-Z]{2,6}\d{3}')
# Families of other checks whose findings stand beside these.
_TAKEN = ('CFG', 'DDP')

_rules: dict[str, 'LintRule'] = {}
# A live view; ids in order.
LINT_RULES = MappingProxyType(_rules)


class Note(msgspec.Struct, frozen=True):
    """What a rule yields.

    Attributes:
        message: One sentence with the facts.
        path: Keys and indices that lead to what it is about; empty for the
            whole config, or for what is outside of it.
        remedy: What to do about it; empty for that of the rule.
        names: See :class:`~mmext.preflight.findings.PreflightFinding`.
        options: Smallest change that mends it, see there.
        severity: Where it is another than that of the rule.
    """

    message: str
    path: tuple[str | int, ...] = ()
    remedy: str = ''
    names: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    severity: Severity | None = None


class LintRule(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is looked for.

    Attributes:
        id: Letters of the family and three digits.
        title: What is wrong, in a few words, without a value.
        severity: Of its findings, if they do not say another.
        remedy: Of findings that have no better one.
        check: Called with a :class:`~.subject.Subject`; yields notes.
    """

    id: str
    title: str
    severity: Severity
    remedy: str
    check: Callable[[Any], Iterator[Note]]


def lint_rule(
    rule_id: str, *, title: str, severity: Severity, remedy: str
) -> Callable[[Callable], Callable]:
    """Make a rule of a generator function, and add it to the list.

    Args:
        rule_id: As :attr:`LintRule.id`.
        title: As :attr:`LintRule.title`.
        severity: As :attr:`LintRule.severity`.
        remedy: As :attr:`LintRule.remedy`.

    Returns:
        A decorator that gives the function back.

    Raises:
        ValueError: If the id has another form than ``'KEY001'``, is taken,
            or is of another check.
    """
    if not _ID.fullmatch(rule_id) or rule_id.startswith(_TAKEN):
        raise ValueError(
            'rule_id must be 2 to 6 capital letters and 3 digits, and none '
            f'of {_TAKEN}, got {rule_id!r}'
        )
    if rule_id in _rules:
        raise ValueError(
            f'rule_id must be new, got {rule_id!r}, which is '
            f'{_rules[rule_id].title!r}'
        )

    def decorate(check: Callable[[Any], Iterable[Note]]) -> Callable:
        new = LintRule(
            id=rule_id,
            title=title,
            severity=severity,
            remedy=remedy,
            check=check,
        )
        ordered = sorted([*_rules.items(), (rule_id, new)])
        _rules.clear()
        _rules.update(ordered)
        return check

    return decorate


def describe_lint_rules() -> list[tuple[str, str, str, str]]:
    """Rows for a list of the rules.

    Returns:
        For each rule, ordered by id: id, severity in lower case, title,
        remedy.
    """
    return [
        (each.id, each.severity.name.lower(), each.title, each.remedy)
        for each in _rules.values()
    ]
