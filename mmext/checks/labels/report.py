"""The result of a check: as data, as JSON, as SARIF and in a terminal."""

import heapq
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from ..findings import (
    Finding,
    Location,
    Severity,
    page,
    sarif_log,
    sarif_result,
    terminal,
    to_json,
)
from .rules import RULES
from .totals import SplitReport

SCHEMA_VERSION = 2
# A table of so many classes is read.
_FEW_CLASSES = 30


_MAX_VALUES = 1000
_NUMBERS = re.compile(r'(\d+)')
_OTHERS = 'others'


class FindingGroup(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """Findings of a rule, over all files."""

    rule: str  # Stable id.
    severity: Severity  # The worst of its findings.
    # One sentence with the extent, such as 'label 11 is out of range; ...: 468
    # masks, 2,801,266 pixels'.
    message: str
    remedy: str  # What to do about it.
    # The wrong value, for rules whose findings are grouped by it.
    value: str = ''
    num_files: int = 0  # How many files; 0 if it is about no file.
    # How many images, masks, splits, ...; what the message counts first.
    num_subjects: int = 0
    num_findings: int = 0  # How many findings.
    count: int = 0  # Pixels, boxes or files, together.
    # Names of splits, each with its number of findings.
    splits: tuple[tuple[str, int], ...] = ()
    # Some findings, the first by split, file and location.
    examples: tuple[Finding, ...] = ()


class _Collected:
    """Sums of a group; of bounded size, unless all examples are kept."""

    def __init__(self, first: Finding, num_examples: int | None) -> None:
        self.rule, self.severity = first.rule, first.severity
        self.message: str | None = first.message
        self.remedy: str | None = first.remedy
        self.num_examples = num_examples
        self.num_files = self.num_images = self.num_findings = self.count = 0
        self.splits: dict[str, int] = {}
        # Findings of a file, and of an image in it, follow one another.
        self.last = '', '', ''
        self.examples: list[Finding] = []

    def add(self, finding: Finding) -> None:
        """Add one."""
        self.num_findings += 1
        self.count += finding.count
        self.severity = max(self.severity, finding.severity)
        split, file = finding.split, finding.file
        self.splits[split] = self.splits.get(split, 0) + 1
        at = split, file, finding.location.image
        self.num_files += bool(file) and at[:2] != self.last[:2]
        self.num_images += at != self.last
        self.last = at
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
        number = self.num_images if self.num_files else self.num_findings
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
            num_subjects=number,
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
    """By file and location; numbers in keys and values go by size."""
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
            sorted(done, key=lambda g: (-g.severity, g.rule, rank(g.value)))
        )


def rank(value: str) -> tuple[int, int, str]:
    """Numbers by size, then words."""
    try:
        return 0, int(value), value
    except ValueError:
        return int(value == _OTHERS) + 1, 0, value


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has found.

    Equal for equal data, however the files were read.
    """

    # Of this form; it grows when a field changes meaning.
    schema_version: int = SCHEMA_VERSION
    rules: tuple[str, ...] = ()  # Ids of the rules that were applied.
    splits: tuple[SplitReport, ...] = ()  # What was looked at.
    groups: tuple[FindingGroup, ...] = ()  # What was found, the worst first.

    def worst(self) -> Severity | None:
        """The severity of the worst finding; None without any."""
        return max((group.severity for group in self.groups), default=None)


# What the report as JSON has of a finding, these first; the others only where
# they say something.
_ALWAYS = ('rule', 'severity', 'message', 'remedy')
_IF_KNOWN = {'split': '', 'file': '', 'position': '', 'value': '', 'count': 1}


def report_json(report: Report) -> bytes:
    """JSON of a report: UTF-8, keys in a fixed order, a newline at the end."""
    form = msgspec.to_builtins(msgspec.structs.replace(report, groups=()))
    form['groups'] = []
    for group in report.groups:
        bare = msgspec.structs.replace(group, examples=())
        form['groups'].append(msgspec.to_builtins(bare))
        if group.examples:
            form['groups'][-1]['examples'] = [
                {name: getattr(finding, name) for name in _ALWAYS}
                | {
                    name: getattr(finding, name)
                    for name, default in _IF_KNOWN.items()
                    if getattr(finding, name) != default
                }
                for finding in group.examples
            ]
    return to_json(form)


class ClassTable(NamedTuple):
    """How much there is of each class of a split."""

    split: str
    unit: str  # 'pixels', or 'objects'.
    files: str  # What has them: 'label maps', or 'images'.
    num_files: int
    # Label, name, number of pixels or objects, their share, number of files.
    rows: list[tuple[int, str, int, float, int]]


def class_table(split: SplitReport) -> ClassTable:
    """A row for each class, of its pixels or else of its objects."""
    if any(row.pixels for row in split.classes):
        units = 'pixels', 'label maps', split.num_masks
        counts = [(row.pixels, row.masks) for row in split.classes]
    else:
        units = 'objects', 'images', split.num_samples
        counts = [(row.boxes, row.images) for row in split.classes]
    total = sum(count for count, _ in counts) or 1
    rows = [
        (row.label, row.name, count, count / total, files)
        for row, (count, files) in zip(split.classes, counts)
    ]
    return ClassTable(split.split, *units, rows)


def percent(share: float) -> str:
    """``'12.34 %'``; what is there at all is seen."""
    return '< 0.01 %' if 0 < share < 0.00005 else f'{100 * share:.2f} %'


def _split_table(split: SplitReport) -> Table:
    own = class_table(split)
    table = Table('label', 'class', own.unit, 'share', own.files, box=None)
    for column in (0, 2, 3, 4):
        table.columns[column].justify = 'right'
    for label, name, count, share, files in own.rows:
        cells = f'{count:,}', percent(share), f'{files:,}'
        table.add_row(str(label), terminal.cell(name), *cells)
    return table


def _extent(split: SplitReport) -> str:
    """What a split holds, without what it has none of."""
    counts = {
        'image': split.num_images,
        'label map': split.num_masks,
        'object': split.num_annotated,
        'class': len(split.classes),
    }
    texts = [many(split.num_samples, 'sample')]
    for noun, count in counts.items():
        text = many(count, noun)
        if noun == 'object' and count != split.num_boxes:
            text = f'{split.num_boxes:,} of {text}'
        texts += [text] if count else []
    return ', '.join(texts)


def many(number: int, noun: str) -> str:
    """``'1,234 samples'``."""
    return f'{number:,} {page.plural(number, noun)}'


def _shown_location(group: FindingGroup, finding: Finding) -> str:
    """Where an example is, and what of it the group does not say."""
    own = finding.message
    if group.message.startswith(own):
        own = ''
    said = f'{group.message} {own}'
    # The line of a config is shown, with its key.
    inside = '' if finding.line else finding.position
    texts = terminal.location_of(finding.location), inside, finding.value
    parts = [
        text
        for text in texts
        if text and not re.search(rf'(?<!\w){re.escape(text)}(?!\w)', said)
    ]
    return ': '.join([*parts, own] if own else parts)


def _where(group: FindingGroup) -> str:
    """Where a group of findings is, in a few words."""
    first = group.examples[0] if group.examples else None
    if first is None or not first.file:
        splits = [split for split, _ in group.splits if split]
        return f' in {terminal.in_words(splits)}' if splits else ''
    location = terminal.location_of(first.location)
    if group.num_files > 1:
        return f' in {group.num_files:,} files, such as {location}'
    return f' at {location}'


def _verdict(report: Report, name: str) -> str:
    """What a check comes to, in one sentence that says what to do."""
    errors, warnings = (
        [group for group in report.groups if group.severity is severity]
        for severity in (Severity.ERROR, Severity.WARNING)
    )
    if errors:
        number = f'{len(errors)} errors' if errors[1:] else 'the error'
        locations: dict[str, str] = {}
        for group in errors:
            title = f'{RULES[group.rule].title} ({group.rule})'
            locations.setdefault(title, _where(group))
        texts = (f'{title}{where}' for title, where in locations.items())
        # Label files of YOLO are not fixed, nor a split that is read wrongly.
        fixable = any(
            RULES[group.rule].fix
            and not group.examples[0].file.endswith('.txt')
            for group in errors
        ) and not any(RULES[group.rule].explains for group in errors)
        after = '; --fix DIR writes fixed copies where that is safe'
        return (
            f'Do not train with {name} yet: mend {number}: '
            f'{terminal.in_words(texts)}{after if fixable else ""}.'
        )
    samples = sum(split.num_samples for split in report.splits)
    if not samples:
        return f'Nothing was checked: {name} has no samples.'
    checked = many(samples, 'sample')
    if warnings:
        return (
            f'The labels of {name} can be trained with, but look at '
            f'{many(len(warnings), "warning")} first; {checked} '
            f'{"was" if samples == 1 else "were"} checked.'
        )
    return (
        f'The labels of {name} can be trained with: nothing is wrong with '
        f'{checked}.'
    )


def print_report(
    report: Report,
    console: Console,
    *,
    name: str = 'the data set',
    verbose: bool = False,
) -> None:
    """Print the verdict, and what was found, the worst last.

    With ``verbose``, print how much there is of each class in any case.
    """
    worst = report.worst()
    if worst is Severity.INFO:
        worst = None
    if not any(split.num_samples for split in report.splits):
        worst = worst or Severity.WARNING
    terminal.print_verdict(console, worst, _verdict(report, name))
    about_classes = any(
        group.rule.startswith('CLS') and group.severity > Severity.INFO
        for group in report.groups
    )
    for split in report.splits:
        terminal.print_text(console, _extent(split), f'  {split.split}: ')
        few = len(split.classes) <= _FEW_CLASSES
        if split.classes and (verbose or (about_classes and few)):
            terminal.print_table(console, _split_table(split))
    for group in sorted(report.groups, key=lambda group: group.severity):
        console.print()
        location = ''
        if group.num_findings == 1 and group.examples:
            location = terminal.location_of(group.examples[0].location)
        # It may have been said.
        location = '' if location in group.message else location
        terminal.print_heading(
            console, group.severity, group.rule, group.message, location
        )
        for finding in group.examples:
            text = _shown_location(group, finding)
            if text and text != location:
                terminal.print_text(console, text, '    - ')
            if finding.line:
                terminal.print_source(console, finding.location)
        more = group.num_findings - len(group.examples)
        if more > 0 and group.examples:
            text = f'and {more:,} more (--all names every one)'
            terminal.print_text(console, text, '    - ')
        terminal.print_text(console, group.remedy, '    remedy: ')
    console.print()
    severities = (group.severity for group in report.groups)
    after = f'; {len(report.rules)} rules applied'
    terminal.print_counts(console, severities, after)


def report_sarif(report: Report, file: str) -> bytes:
    """SARIF of a report: a result for each location that it names.

    Findings that are about no file of their own are located at ``file``.
    """
    results = []
    for group in report.groups:
        for example in group.examples or (None,):
            text, location = group.message, Location(file=file)
            if example is not None:
                location = example.location
                parts = (example.message, example.position, example.value)
                text = '; '.join(filter(None, parts))
            if not location.file:
                location = msgspec.structs.replace(location, file=file)
            text = f'{text}. Remedy: {group.remedy}'
            results.append(
                sarif_result(group.rule, group.severity, text, location)
            )
    rules = [RULES[rule_id] for rule_id in report.rules]
    return sarif_log('label_check', rules, results)
