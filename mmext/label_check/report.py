"""The result of a check: as data, as JSON, as SARIF and in a terminal."""

from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..findings import Location, Severity, as_record, sarif, terminal, to_json
from .expectations import Expectations
from .groups import FindingGroup
from .loaded import count_classes
from .rules import RULES
from .totals import SplitTotals

__all__ = [
    'ClassCounts',
    'Report',
    'SplitReport',
    'make_split_report',
    'print_report',
    'report_json',
    'report_sarif',
    'report_schema',
]

SCHEMA_VERSION = 1


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
    pixels, masks, area = (
        count_classes(counts, expected)
        for counts in (totals.pixels, totals.masks, totals.area)
    )
    rows = []
    for label in range(number):
        known = label < len(expected.classes)
        rows.append(
            ClassCounts(
                label=label,
                name=expected.classes[label] if known else '',
                pixels=pixels.get(label, 0),
                masks=masks.get(label, 0),
                area=area.get(label, 0),
                boxes=totals.boxes.get(label, 0),
                images=totals.box_images.get(label, 0),
            )
        )
    return SplitReport(
        split=expected.split,
        task=expected.task,
        num_samples=totals.num_samples,
        num_images=totals.num_images,
        num_masks=totals.num_masks,
        num_boxes=sum(totals.boxes.values()),
        classes=tuple(rows),
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
    form['groups'] = [_group_form(group) for group in report.groups]
    return to_json(form)


def _group_form(group: FindingGroup) -> dict[str, Any]:
    form = msgspec.to_builtins(msgspec.structs.replace(group, examples=()))
    if group.examples:
        form['examples'] = [
            as_record(finding, Example) for finding in group.examples
        ]
    return form


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
    title = (
        f'{split.split}: {split.num_samples:,} samples, '
        f'{split.num_images:,} images, {split.num_masks:,} label maps, '
        f'{split.num_boxes:,} objects'
    )
    table = Table(title=escape(title), title_justify='left')
    table.add_column('label', justify='right')
    table.add_column('class')
    columns = ('pixels', 'share', 'label maps')
    for name in columns if semantic else ('objects', 'share', 'images'):
        table.add_column(name, justify='right')
    numbers = [
        (row.pixels, row.masks) if semantic else (row.boxes, row.images)
        for row in split.classes
    ]
    total = sum(count for count, _ in numbers) or 1
    for row, (count, where) in zip(split.classes, numbers):
        table.add_row(
            str(row.label),
            escape(row.name),
            f'{count:,}',
            f'{100 * count / total:.2f} %',
            f'{where:,}',
        )
    return table


def _print_group(console: Console, group: FindingGroup) -> None:
    terminal.print_heading(console, group.severity, group.rule, group.message)
    for finding in group.examples:
        where = (finding.file, finding.place, finding.value)
        if any(where):
            terminal.print_line(
                console, ', '.join(filter(None, where)), '    '
            )
    more = group.num_findings - len(group.examples)
    if more > 0 and group.examples:
        terminal.print_line(console, f'    and {more:,} more')
    terminal.print_line(console, f'  remedy: {group.remedy}')


def print_report(report: Report, console: Console) -> None:
    """Print a report, the worst finding last, where the eye is."""
    for split in report.splits:
        if split.classes:
            console.print(_split_table(split))
    for group in reversed(report.groups):
        console.print()
        _print_group(console, group)
    console.print()
    severities = (group.severity for group in report.groups)
    after = f'; {len(report.rules)} rules applied'
    terminal.print_counts(console, severities, after)


def report_sarif(report: Report) -> bytes:
    """SARIF of a report: a result for each file that it names.

    A group names as many files as its check was asked to (``num_examples``);
    its message gives the extent.
    """
    results = []
    for group in report.groups:
        for example in group.examples or (None,):
            text, location = group.message, Location()
            if example is not None:
                location = example.location
                parts = (example.message, example.place, example.value)
                text = '; '.join(filter(None, parts))
            text = f'{text}. Remedy: {group.remedy}'
            results.append(
                sarif.result(group.rule, group.severity, text, location)
            )
    rules = [RULES[rule_id] for rule_id in report.rules]
    return sarif.log('label_check', rules, results)
