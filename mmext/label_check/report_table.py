"""A report for the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .findings import Severity
from .groups import FindingGroup
from .report import Report, SplitReport

__all__ = ['print_report', 'print_rules']

_COLOURS = {
    Severity.ERROR: 'bold red',
    Severity.WARNING: 'yellow',
    Severity.INFO: 'cyan',
}


def _split_table(split: SplitReport) -> Table:
    semantic = any(each.pixels for each in split.classes)
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
        (each.pixels, each.masks) if semantic else (each.boxes, each.images)
        for each in split.classes
    ]
    total = sum(count for count, _ in numbers) or 1
    for each, (count, where) in zip(split.classes, numbers):
        table.add_row(
            str(each.label),
            escape(each.name),
            f'{count:,}',
            f'{100 * count / total:.2f} %',
            f'{where:,}',
        )
    return table


def _print_group(console: Console, group: FindingGroup) -> None:
    colour = _COLOURS[group.severity]
    name = group.severity.name.lower()
    console.print(
        f'[{colour}]{name} {group.rule}[/] {escape(group.message)}',
        highlight=False,
    )
    for each in group.examples:
        where = ', '.join(
            part for part in (each.file, each.place, each.value) if part
        )
        if where:
            console.print(f'    {escape(where)}', highlight=False)
    more = group.num_findings - len(group.examples)
    if more > 0 and group.examples:
        console.print(f'    and {more:,} more', highlight=False)
    console.print(f'  remedy: {escape(group.remedy)}', highlight=False)


def print_report(report: Report, console: Console) -> None:
    """Print what was found, the worst last, where the eye is.

    Args:
        report: Of a check.
        console: Where to.
    """
    for split in report.splits:
        if split.classes:
            console.print(_split_table(split))
    for group in reversed(report.groups):
        console.print()
        _print_group(console, group)
    counts = {
        severity: sum(each.severity == severity for each in report.groups)
        for severity in reversed(Severity)
    }
    words = ', '.join(
        f'{count} {severity.name.lower()}' + ('s' if count != 1 else '')
        for severity, count in counts.items()
        if severity is not Severity.INFO
    )
    notes = counts[Severity.INFO]
    console.print(
        f'\n{words}, {notes} note{"s" if notes != 1 else ""}; '
        f'{len(report.rules)} rules applied',
        highlight=False,
    )


def print_rules(
    rows: Sequence[tuple[str, str, str, str, str]], console: Console
) -> None:
    """Print the list of rules.

    Args:
        rows: Of :func:`~mmext.label_check.rules.describe_rules`.
        console: Where to.
    """
    table = Table()
    for name in ('rule', 'severity', 'looks at', 'what is wrong', 'remedy'):
        table.add_column(name, overflow='fold')
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
