"""The list of rules: what is checked, how bad it is, what to do about it.

A rule is a plain generator function in a file of its family::

    @rule(
        'SEG900',
        title='mask is blue',
        severity=Severity.ERROR,
        remedy='paint it',
        scope='sample',
    )
    def blue_mask(facts, expected):
        if is_blue(facts.mask):
            yield found('mask is blue', file=facts.sample.mask)

What it yields inherits rule id, severity, split, and, where it gives none,
remedy. Ids are stable: an id that is not used any more is not given anew.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any

import msgspec

from ..findings import Finding, Severity

__all__ = [
    'RULES',
    'Rule',
    'describe_rules',
    'found',
    'register',
    'rule',
    'select_rules',
]

SCOPES = ('sample', 'coco', 'orphan', 'split', 'run')
NEEDS = ('', 'mask', 'image', 'annotation', 'boxes')
_ID = re.compile(r'[A-Z]{2,6}\d{3}')
_NO_RULE = ''

_rules: dict[str, 'Rule'] = {}
# A live view; ids in order, as `register` keeps them.
RULES = MappingProxyType(_rules)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is checked.

    Attributes:
        id: Letters of the family and three digits.
        title: What is wrong, in a few words, without a value.
        severity: Of all its findings.
        remedy: Of findings that have no better one.
        scope: ``'sample'``: called with
            :class:`~mmext.label_check.facts.SampleFacts` and
            :class:`~mmext.label_check.expectations.Expectations`;
            ``'coco'``: with
            :class:`~mmext.label_check.rules.coco_file.CocoFacts` and
            Expectations; ``'orphan'``: with
            :class:`~mmext.label_check.facts.Orphan` and Expectations;
            ``'split'``: with :class:`~mmext.label_check.totals.SplitTotals`
            and Expectations;
            ``'run'``: with a sequence of each.
        check: The function; yields completed findings.
        per_value: Findings of different values are different errors, and
            are reported apart. For values of which there are few.
        subject: What a finding is about, singular: ``'mask'``, ``'image'``.
        unit: What its count counts, singular: ``'pixel'``, ``'box'``; empty
            if there is nothing to count but subjects.
        needs: Of the scope ``'sample'``: what a sample must have to be
            looked at, ``'mask'``, ``'image'``, ``'annotation'`` or
            ``'boxes'``; empty for any sample. It saves time, and must not
            change what the rule finds.
    """

    id: str
    title: str
    severity: Severity
    remedy: str
    scope: str
    check: Callable[[Any, Any], Iterator[Finding]]
    per_value: bool = False
    subject: str = 'file'
    unit: str = ''
    needs: str = ''


def found(message: str, **details: Any) -> Finding:
    """What a rule yields: a finding that :func:`rule` completes.

    Args:
        message: One sentence. The same for each file that has the same
            error, as far as possible: ``value``, ``count``, ``file`` and
            ``place`` have fields of their own.
        details: Other fields of :class:`~mmext.label_check.findings.Finding`.

    Returns:
        The finding, without rule and severity.

    Examples:
        >>> found('mask is blue', file='a.png').file
        'a.png'
    """
    details.setdefault('remedy', '')
    return Finding(
        rule=_NO_RULE, severity=Severity.INFO, message=message, **details
    )


def register(new: Rule) -> None:
    """Add a rule to the list.

    Args:
        new: The rule.

    Raises:
        ValueError: If its id has another form than ``'SEG001'`` or is taken,
            or its scope or what it needs is none of those there are.
    """
    if not _ID.fullmatch(new.id):
        raise ValueError(
            'id must be 2 to 6 capital letters and 3 digits, such as '
            f"'SEG001', got {new.id!r}"
        )
    if new.scope not in SCOPES:
        raise ValueError(
            f'scope of {new.id} must be one of {SCOPES}, got {new.scope!r}'
        )
    if new.needs not in NEEDS or (new.needs and new.scope != 'sample'):
        raise ValueError(
            f"needs of {new.id} must be one of {NEEDS}, and '' unless scope "
            f"is 'sample', got {new.needs!r} with scope {new.scope!r}"
        )
    if new.id in _rules:
        raise ValueError(
            f'id must be new, got {new.id!r}, which is '
            f'{_rules[new.id].title!r}'
        )
    ordered = sorted([*_rules.items(), (new.id, new)])
    _rules.clear()
    _rules.update(ordered)


def rule(
    rule_id: str,
    *,
    title: str,
    severity: Severity,
    remedy: str,
    scope: str,
    per_value: bool = False,
    subject: str = 'file',
    unit: str = '',
    needs: str = '',
) -> Callable[[Callable], Callable]:
    """Make a rule of a generator function, and add it to :data:`RULES`.

    Args:
        rule_id: As :attr:`Rule.id`.
        title: As :attr:`Rule.title`.
        severity: As :attr:`Rule.severity`.
        remedy: As :attr:`Rule.remedy`.
        scope: As :attr:`Rule.scope`.
        per_value: As :attr:`Rule.per_value`.
        subject: As :attr:`Rule.subject`.
        unit: As :attr:`Rule.unit`.
        needs: As :attr:`Rule.needs`.

    Returns:
        A decorator. The decorated function yields completed findings.

    Raises:
        ValueError: As :func:`register`.
    """

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def check(facts: Any, expected: Any) -> Iterator[Finding]:
            return (
                _complete(finding, new, facts)
                for finding in function(facts, expected)
            )

        new = Rule(
            id=rule_id,
            title=title,
            severity=severity,
            remedy=remedy,
            scope=scope,
            check=check,
            per_value=per_value,
            subject=subject,
            unit=unit,
            needs=needs,
        )
        register(new)
        return check

    return decorate


def _complete(finding: Finding, of: Rule, facts: Any) -> Finding:
    split = '' if of.scope == 'run' else facts.split
    return msgspec.structs.replace(
        finding,
        rule=of.id,
        severity=of.severity,
        remedy=finding.remedy or of.remedy,
        split=finding.split or split,
    )


def select_rules(
    select: Iterable[str] = (), ignore: Iterable[str] = ()
) -> tuple[Rule, ...]:
    """Choose rules by id, or by the beginning of ids.

    Args:
        select: Such as ``('SEG', 'PAIR001')``; empty for all.
        ignore: Taken away from those.

    Returns:
        Rules ordered by id.

    Raises:
        ValueError: If a word is neither an id nor the beginning of one.
    """
    chosen = _matching(tuple(select), 'select') or set(_rules)
    chosen -= _matching(tuple(ignore), 'ignore')
    return tuple(_rules[each] for each in _rules if each in chosen)


def _matching(words: tuple[str, ...], argument: str) -> set[str]:
    matching: set[str] = set()
    for word in words:
        ids = {each for each in _rules if word and each.startswith(word)}
        if not ids:
            families = sorted({each[:-3] for each in _rules})
            raise ValueError(
                f'{argument} must hold ids of rules, such as '
                f"'{next(iter(_rules), 'SEG001')}', or beginnings of ids, "
                f'such as {families}, got {word!r}; --list-rules lists them'
            )
        matching |= ids
    return matching


def describe_rules() -> list[tuple[str, str, str, str, str]]:
    """Rows for a list of the rules.

    Returns:
        For each rule, ordered by id: id, severity in lower case, scope,
        title, remedy.
    """
    return [
        (
            each.id,
            each.severity.name.lower(),
            each.scope,
            each.title,
            each.remedy,
        )
        for each in _rules.values()
    ]
