"""Group equal findings across files."""

import heapq
import re
from collections.abc import Iterable, Mapping

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
    """Sums of a group; of bounded size."""

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
        self._keep((finding,))

    def merge(self, other: '_Collected') -> None:
        """Add the group of a value that is not listed any more."""
        self.num_files += other.num_files
        self.num_findings += other.num_findings
        self.count += other.count
        for split, count in other.splits.items():
            self.splits[split] = self.splits.get(split, 0) + count
        self.message = None
        self.severity = max(self.severity, other.severity)
        if other.remedy != self.remedy:
            self.remedy = None
        self._keep(other.examples)

    def _keep(self, new: Iterable[Finding]) -> None:
        if self.num_examples is None:
            self.examples += new
            return
        if len(self.examples) >= self.num_examples:
            last = _order(self.examples[-1]) if self.examples else ()
            new = [example for example in new if _order(example) < last]
        if new:
            self.examples = heapq.nsmallest(
                self.num_examples, [*self.examples, *new], key=_order
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


def group_findings(
    findings: Iterable[Finding],
    *,
    num_examples: int | None = 5,
    remedies: Mapping[str, str] | None = None,
) -> list[FindingGroup]:
    """Group findings, the worst first, then by rule and value.

    Findings of a rule are one group, or one for each value if the rule says
    so (``per_value``; the 1,000 smallest values, and one group of all
    others). A group whose findings have different messages, or remedies,
    gets the title, or the remedy, of its rule. The result does not depend on
    the order of files, and memory not on the number of findings, unless
    ``num_examples`` is None, and all are kept.
    """
    groups: dict[tuple[str, str], _Collected] = {}
    values: dict[str, list[tuple[int, str]]] = {}
    for finding in findings:
        value = _value(finding)
        key = finding.rule, value
        if key not in groups and value:
            key = _make_room(groups, values, finding.rule, value)
        if key not in groups:
            groups[key] = _Collected(finding, num_examples)
        groups[key].add(finding)
        if key[1] == _OTHERS:
            groups[key].message = None
    done = [
        _finish(group, value, (remedies or {}).get(group.rule))
        for (_, value), group in groups.items()
    ]
    return sorted(
        done,
        key=lambda group: (-group.severity, group.rule, _rank(group.value)),
    )


def _value(finding: Finding) -> str:
    rule = RULES.get(finding.rule)
    return finding.value if rule is not None and rule.per_value else ''


def _rank(value: str) -> tuple[int, int, str]:
    """Numbers by size, then words."""
    try:
        return 0, int(value), value
    except ValueError:
        return int(value == _OTHERS) + 1, 0, value


def _make_room(
    groups: dict, values: dict, rule: str, value: str
) -> tuple[str, str]:
    """Keep the smallest values: this does not depend on the order."""
    kept = values.setdefault(rule, [])
    if len(kept) < _MAX_VALUES:
        kept.append(value)
        kept.sort(key=_rank)
        return rule, value
    if _rank(value) >= _rank(kept[-1]):
        return rule, _OTHERS
    out = groups.pop((rule, kept.pop()))
    if (rule, _OTHERS) in groups:
        groups[rule, _OTHERS].merge(out)
    else:
        out.message = None
        groups[rule, _OTHERS] = out
    kept.append(value)
    kept.sort(key=_rank)
    return rule, value


def _finish(group: _Collected, value: str, remedy: str | None) -> FindingGroup:
    rule = RULES.get(group.rule)
    message = group.message
    if message is None:
        message = rule.title if rule else group.rule
        if value:
            message += f', value {value}'
    number = group.num_files or group.num_findings
    subject = rule.subject if rule else 'file'
    extent = f'{number:,} {page.plural(number, subject)}'
    if rule and rule.unit:
        extent += f', {group.count:,} {page.plural(group.count, rule.unit)}'
    default = rule.remedy if rule else ''
    return FindingGroup(
        rule=group.rule,
        severity=group.severity,
        message=f'{message}: {extent}',
        remedy=remedy or group.remedy or default,
        value=value,
        num_files=group.num_files,
        num_findings=group.num_findings,
        count=group.count,
        splits=tuple(sorted(group.splits.items())),
        examples=tuple(sorted(group.examples, key=_order)),
    )
