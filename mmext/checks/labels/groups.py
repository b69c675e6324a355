"""Group equal findings across files."""

import heapq
import re
from collections import Counter
from collections.abc import Mapping

import msgspec

from ..findings import Finding, Severity, page
from .rules.registry import RULES

_MAX_VALUES = 1000
_NUMBERS = re.compile(r'(\d+)')
_OTHERS = 'others'


class FindingGroup(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """Findings of a rule, over all files.

    Attributes:
        rule: Stable id.
        severity: The worst of its findings.
        message: One sentence with the extent, such as ``'label 11 is out of
            range; ...: 468 masks, 2,801,266 pixels'``.
        remedy: What to do about it.
        value: The wrong value, for rules whose findings are grouped by it.
        num_files: How many files; 0 if it is about no file.
        num_findings: How many findings.
        count: Pixels, boxes or files, together.
        splits: Names of splits, each with its number of findings.
        examples: Some findings, the first by split, file and place.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str
    value: str = ''
    num_files: int = 0
    num_findings: int = 0
    count: int = 0
    splits: tuple[tuple[str, int], ...] = ()
    examples: tuple[Finding, ...] = ()


class _Collected:
    """Sums of a group; of bounded size, unless all examples are kept."""

    def __init__(self, first: Finding, num_examples: int | None) -> None:
        self.rule, self.severity = first.rule, first.severity
        self.message: str | None = first.message
        self.remedy: str | None = first.remedy
        self.num_examples = num_examples
        self.num_files = self.num_findings = self.count = 0
        self.splits: dict[str, int] = {}
        self.last_file: tuple[str, str] | None = None
        self.examples: list[Finding] = []

    def add(self, finding: Finding) -> None:
        """Add one."""
        self.num_findings += 1
        self.count += finding.count
        self.severity = max(self.severity, finding.severity)
        split, file = finding.split, finding.file
        self.splits[split] = self.splits.get(split, 0) + 1
        if file and (split, file) != self.last_file:
            self.num_files += 1
            self.last_file = split, file
        if finding.message != self.message:
            self.message = None
        if finding.remedy != self.remedy:
            self.remedy = None
        self.examples.append(finding)
        most = self.num_examples
        if most is not None and len(self.examples) > 2 * most + 100:
            self.examples = heapq.nsmallest(most, self.examples, key=_order)

    def finish(self, value: str, remedy: str | None) -> FindingGroup:
        """The group of all that was added."""
        rule = RULES[self.rule]
        message = self.message
        if message is None:
            message = rule.title + (f', value {value}' if value else '')
        number = self.num_files or self.num_findings
        extent = f'{number:,} {page.plural(number, rule.subject)}'
        if rule.unit:
            extent += f', {self.count:,} {page.plural(self.count, rule.unit)}'
        examples = sorted(self.examples, key=_order)[: self.num_examples]
        return FindingGroup(
            rule=self.rule,
            severity=self.severity,
            message=f'{message}: {extent}',
            remedy=remedy or self.remedy or rule.remedy,
            value=value,
            num_files=self.num_files,
            num_findings=self.num_findings,
            count=self.count,
            splits=tuple(sorted(self.splits.items())),
            examples=tuple(examples),
        )


def _by_size(text: str) -> list[tuple[int, str]]:
    """To sort texts by the numbers in them."""
    return [
        (int(part), '') if part.isdecimal() else (-1, part)
        for part in _NUMBERS.split(text)
    ]


def _order(finding: Finding) -> tuple:
    """By file and place; numbers in keys and values go by size."""
    location = finding.location
    return (
        finding.split,
        location.file,
        location.pixel or (),
        _by_size(location.key),
        location.image,
        _by_size(finding.value),
        finding.message,
    )


class FindingGroups:
    """Findings in groups, the worst first, then by rule and value.

    Findings of a rule are one group, or one for each value if the rule says
    so (``per_value``; the first 1,000 values, and one group of all others).
    A group whose findings have different messages, or remedies, gets the
    title, or the remedy, of its rule. Memory does not depend on the number
    of findings, unless ``num_examples`` is None, and all are kept.
    """

    def __init__(self, num_examples: int | None = 5) -> None:
        self._num_examples = num_examples
        self._groups: dict[tuple[str, str], _Collected] = {}
        self._num_values = Counter[str]()

    def add(self, finding: Finding) -> None:
        """Add one to its group."""
        value = finding.value if RULES[finding.rule].per_value else ''
        if value and (finding.rule, value) not in self._groups:
            if self._num_values[finding.rule] < _MAX_VALUES:
                self._num_values[finding.rule] += 1
            else:
                value = _OTHERS
        key = finding.rule, value
        if key not in self._groups:
            self._groups[key] = _Collected(finding, self._num_examples)
        self._groups[key].add(finding)
        if value == _OTHERS:
            self._groups[key].message = None

    def finish(self, remedies: Mapping[str, str]) -> tuple[FindingGroup, ...]:
        """All groups; ``remedies`` by rule take the place of others."""
        done = (
            group.finish(value, remedies.get(rule))
            for (rule, value), group in self._groups.items()
        )
        return tuple(
            sorted(done, key=lambda g: (-g.severity, g.rule, _rank(g.value)))
        )


def _rank(value: str) -> tuple[int, int, str]:
    """Numbers by size, then words."""
    try:
        return 0, int(value), value
    except ValueError:
        return int(value == _OTHERS) + 1, 0, value
