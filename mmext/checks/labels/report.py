"""The result of a check: as data, as JSON, as SARIF and in a terminal."""

import re

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..findings import (
    Finding,
    Location,
    Severity,
    as_record,
    page,
    sarif,
    terminal,
    to_json,
)
from .expectations import Expectations
from .groups import FindingGroup
from .loaded import count_classes
from .rules import RULES
from .totals import SplitTotals

SCHEMA_VERSION = 1
# A table of so many classes is read.
_FEW_CLASSES = 30


class ClassCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is of a class in a split.

    Attributes:
        label: Index of the class.
        name: Of the class; empty if not known.
        pixels: After loading, over all label maps.
        masks: Label maps that have it.
        area: Pixels of these label maps, all classes.
        boxes: Objects that are not ignored.
        images: Samples that have such an object.
    """

    label: int
    name: str = ''
    pixels: int = 0
    masks: int = 0
    area: int = 0
    boxes: int = 0
    images: int = 0


class SplitReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one split holds.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        task: As in Expectations.
        num_samples: Samples.
        num_images: Images that could be read.
        num_masks: Label maps that could be read.
        num_boxes: Objects that are not ignored.
        classes: One for each class, in order.
    """

    split: str
    task: str
    num_samples: int
    num_images: int
    num_masks: int
    num_boxes: int
    classes: tuple[ClassCounts, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has found.

    Equal for equal data, however the files were read.

    Attributes:
        schema_version: Of this form; it grows when a field changes meaning.
        rules: Ids of the rules that were applied.
        splits: What was looked at.
        groups: What was found, the worst first.
    """

    schema_version: int = SCHEMA_VERSION
    rules: tuple[str, ...] = ()
    splits: tuple[SplitReport, ...] = ()
    groups: tuple[FindingGroup, ...] = ()

    def worst(self) -> Severity | None:
        """The severity of the worst finding; None without any."""
        return max((group.severity for group in self.groups), default=None)


def make_split_report(
    totals: SplitTotals, expected: Expectations
) -> SplitReport:
    """Sum up a split, with a row for each class."""
    number = max(expected.num_classes, len(expected.classes))
    names = dict(enumerate(expected.classes))
    pixels, masks, area = (
        count_classes(counts, expected)
        for counts in (totals.pixels, totals.masks, totals.area)
    )
    return SplitReport(
        split=expected.split,
        task=expected.task,
        num_samples=totals.num_samples,
        num_images=totals.num_images,
        num_masks=totals.num_masks,
        num_boxes=sum(totals.boxes.values()),
        classes=tuple(
            ClassCounts(
                label=label,
                name=names.get(label, ''),
                pixels=pixels.get(label, 0),
                masks=masks.get(label, 0),
                area=area.get(label, 0),
                boxes=totals.boxes.get(label, 0),
                images=totals.box_images.get(label, 0),
            )
            for label in range(number)
        ),
    )


class Example(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a rule has found.

    Attributes:
        rule: Stable id, such as ``'SEG001'``.
        severity: That of the rule.
        message: One sentence with the facts; names value and allowed range.
        remedy: What to do about it.
        split: ``'train'``, ``'val'``, ...; empty for all.
        file: Path of the file that is wrong, as the data set names it; empty
            for the data set or the config itself.
        place: Where in the file: ``'y=3, x=5'`` of the first pixel,
            ``'annotation 17'``, ``'images[4].width'``; empty for all of it.
        value: The value that is wrong, as text.
        count: Pixels, boxes or files that it is about.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str
    split: str = ''
    file: str = ''
    place: str = ''
    value: str = ''
    count: int = 1


def report_json(report: Report) -> bytes:
    """JSON of a report: UTF-8, keys in a fixed order, a newline at the end."""
    form = msgspec.to_builtins(msgspec.structs.replace(report, groups=()))
    form['groups'] = []
    for group in report.groups:
        bare = msgspec.structs.replace(group, examples=())
        form['groups'].append(msgspec.to_builtins(bare))
        if group.examples:
            form['groups'][-1]['examples'] = [
                as_record(finding, Example) for finding in group.examples
            ]
    return to_json(form)


def report_schema() -> bytes:
    """JSON Schema (2020-12) of what :func:`report_json` writes.

    Severities are 0 (note), 1 (warning) and 2 (error).
    """
    schema = msgspec.json.schema(Report)
    definitions = schema['$defs']
    del definitions['Location']
    definitions['Finding'] = {
        **msgspec.json.schema(Example)['$defs']['Example'],
        'title': 'Finding',
    }
    first = {'$schema': 'https://json-schema.org/draft/2020-12/schema'}
    return to_json(first | schema)


def _split_table(split: SplitReport) -> Table:
    semantic = any(row.pixels for row in split.classes)
    table = Table('label', 'class', box=None)
    columns = ('pixels', 'share', 'label maps')
    for name in columns if semantic else ('objects', 'share', 'images'):
        table.add_column(name, justify='right')
    table.columns[0].justify = 'right'
    numbers = [
        (row.pixels, row.masks) if semantic else (row.boxes, row.images)
        for row in split.classes
    ]
    total = sum(count for count, _ in numbers) or 1
    for row, (count, where) in zip(split.classes, numbers):
        share = f'{100 * count / total:.2f} %'
        name = escape(row.name)
        table.add_row(str(row.label), name, f'{count:,}', share, f'{where:,}')
    return table


def _extent(split: SplitReport) -> str:
    """What a split holds, without what it has none of."""
    counts = {
        'image': split.num_images,
        'label map': split.num_masks,
        'object': split.num_boxes,
        'class': len(split.classes),
    }
    texts = [_many(split.num_samples, 'sample')]
    texts += [_many(count, noun) for noun, count in counts.items() if count]
    return ', '.join(texts)


def _many(number: int, noun: str) -> str:
    return f'{number:,} {page.plural(number, noun)}'


def _shown_place(group: FindingGroup, finding: Finding) -> str:
    """Where an example is, and what of it the group does not say."""
    own = finding.message
    if group.message.startswith(own):
        own = ''
    said = f'{group.message} {own}'
    # The line of a config is shown, with its key.
    inside = '' if finding.line else finding.place
    texts = terminal.place_of(finding.location), inside, finding.value
    parts = [
        text
        for text in texts
        if text and not re.search(rf'(?<!\w){re.escape(text)}(?!\w)', said)
    ]
    return ': '.join([*parts, own] if own else parts)


def _print_group(console: Console, group: FindingGroup) -> None:
    place = ''
    if group.num_findings == 1 and group.examples:
        place = terminal.place_of(group.examples[0].location)
    # It may have been said.
    place = '' if place and place in group.message else place
    terminal.print_heading(
        console, group.severity, group.rule, group.message, place
    )
    for finding in group.examples:
        text = _shown_place(group, finding)
        if text and text != place:
            terminal.print_text(console, text, '    - ')
        if finding.line:
            terminal.print_source(console, finding.location)
    more = group.num_findings - len(group.examples)
    if more > 0 and group.examples:
        text = f'and {more:,} more (--all names every one)'
        terminal.print_text(console, text, '    - ')
    terminal.print_text(console, group.remedy, '    remedy: ')


def _where(group: FindingGroup) -> str:
    """Where a group of findings is, in a few words."""
    first = group.examples[0] if group.examples else None
    if first is None or not first.file:
        splits = [split for split, _ in group.splits if split]
        return f' in {terminal.in_words(splits)}' if splits else ''
    place = terminal.place_of(first.location)
    if group.num_files > 1:
        return f' in {group.num_files:,} files, such as {place}'
    return f' at {place}'


def _verdict(report: Report, name: str) -> str:
    """What a check comes to, in one sentence that says what to do."""
    errors, warnings = (
        [group for group in report.groups if group.severity is severity]
        for severity in (Severity.ERROR, Severity.WARNING)
    )
    if errors:
        number = f'{len(errors)} errors' if errors[1:] else 'the error'
        places: dict[str, str] = {}
        for group in errors:
            title = f'{RULES[group.rule].title} ({group.rule})'
            places.setdefault(title, _where(group))
        texts = (f'{title}{where}' for title, where in places.items())
        # Label files of YOLO are not repaired.
        fixable = any(
            RULES[group.rule].fix
            and not group.examples[0].file.endswith('.txt')
            for group in errors
        )
        after = '; --fix DIR writes repaired copies where there is no doubt'
        return (
            f'Do not train with {name} yet: mend {number}: '
            f'{terminal.in_words(texts)}{after if fixable else ""}.'
        )
    samples = sum(split.num_samples for split in report.splits)
    if not samples:
        return f'Nothing was checked: {name} has no samples.'
    checked = _many(samples, 'sample')
    if warnings:
        return (
            f'The labels of {name} can be trained with, but look at '
            f'{_many(len(warnings), "warning")} first; {checked} '
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

    Args:
        report: Of a check.
        console: See :func:`~mmext.checks.findings.terminal.make_console`.
        name: What was checked.
        verbose: Print how much there is of each class, too, where nothing is
            wrong with it.
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
        _print_group(console, group)
    console.print()
    severities = (group.severity for group in report.groups)
    after = f'; {len(report.rules)} rules applied'
    terminal.print_counts(console, severities, after)


def report_sarif(report: Report, file: str) -> bytes:
    """SARIF of a report: a result for each place that it names.

    A group names as many places as its check was asked to
    (``num_examples``); its message gives the extent.

    Args:
        report: Of a check.
        file: What was checked, which findings are located at that are about
            no file of their own.
    """
    results = []
    for group in report.groups:
        for example in group.examples or (None,):
            text, location = group.message, Location(file=file)
            if example is not None:
                location = example.location
                parts = (example.message, example.place, example.value)
                text = '; '.join(filter(None, parts))
            if not location.file:
                location = msgspec.structs.replace(location, file=file)
            text = f'{text}. Remedy: {group.remedy}'
            results.append(
                sarif.result(group.rule, group.severity, text, location)
            )
    rules = [RULES[rule_id] for rule_id in report.rules]
    return sarif.log('label_check', rules, results)
