"""A preflight for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .findings import PreflightFinding, Severity
from .report import PreflightReport, outcome_words

__all__ = ['print_report']

_COLOURS = {
    Severity.ERROR: 'bold red',
    Severity.WARNING: 'yellow',
    Severity.INFO: 'cyan',
}
_MAX_NAMES = 6
_MAX_LOSSES = 6


def _batch_table(report: PreflightReport) -> Table:
    table = Table(title='batches', title_justify='left')
    for name in ('kind', 'steps', 'losses of the first step', 'unused'):
        table.add_column(name)
    for each in report.batches:
        shown = [f'{k} {v:.4g}' for k, v in each.losses.items()]
        losses = ', '.join(shown[:_MAX_LOSSES])
        if len(shown) > _MAX_LOSSES:
            total = sum(each.losses.values())
            losses += f' and {len(shown) - _MAX_LOSSES} more, sum {total:.4g}'
        table.add_row(
            each.kind,
            str(each.steps),
            escape(each.error or losses),
            str(each.unused),
        )
    return table


def _verdict_table(verdicts: Any) -> Table:
    table = Table(
        title='what the model wrapper would do', title_justify='left'
    )
    columns = ('checkpointing', 'find_unused_parameters', 'static_graph')
    for name in (*columns, 'outcome', ''):
        table.add_column(name)
    for row in verdicts.rows:
        marks = [
            word
            for word, holds in (
                ('as configured', row.current),
                ('recommended', row.recommended),
            )
            if holds
        ]
        colour = 'green' if row.works else 'red'
        table.add_row(
            escape(row.checkpointing),
            str(row.find_unused_parameters),
            str(row.static_graph),
            f'[{colour}]{escape(row.outcome)}[/]',
            ', '.join(marks),
        )
    return table


def _names(names: Sequence[str]) -> str:
    shown = ', '.join(names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f'{shown} and {more} more' if more > 0 else shown


def _print_finding(console: Console, finding: PreflightFinding) -> None:
    colour = _COLOURS[finding.severity]
    name = finding.severity.name.lower()
    console.print(
        f'[{colour}]{name} {finding.rule}[/] {escape(finding.message)}',
        highlight=False,
    )
    place = finding.key
    if finding.file:
        place += f' ({finding.file}:{finding.line})'
    lines = [
        (place, '    '),
        (_names(finding.names), '    '),
        (', '.join(finding.batches), '    with batches: '),
    ]
    for text, before in lines:
        if text:
            console.print(f'{before}{escape(text)}', highlight=False)
    console.print(f'  remedy: {escape(finding.remedy)}', highlight=False)


def _print_proof(report: PreflightReport, console: Console) -> None:
    if report.batches:
        console.print(_batch_table(report))
    verdicts = report.verdicts
    if verdicts is not None:
        console.print(_verdict_table(verdicts))
        for text in (verdicts.reason, verdicts.fix, verdicts.cost):
            if text:
                console.print(escape(text), highlight=False)
    world = report.world
    if world is not None:
        word = 'agree' if world.agrees else 'DISAGREE'
        console.print(
            f'real processes {word}: '
            f'{escape(outcome_words(world.observed))} (predicted: '
            f'{escape(outcome_words(world.predicted))})',
            highlight=False,
        )


def print_report(report: PreflightReport, console: Console) -> None:
    """Print what was found, the worst last, where the eye is.

    Args:
        report: Of a preflight.
        console: Where to.
    """
    title = f'preflight of {report.config}'
    if report.task:
        title += f': {report.task}, {report.trainable:,} trainable parameters'
    console.print(escape(title), style='bold', highlight=False)
    for note in report.notes:
        console.print(f'  {escape(note)}', highlight=False)
    _print_proof(report, console)
    for finding in reversed(report.findings):
        _print_finding(console, finding)
    for text in report.not_done:
        console.print(f'[yellow]not done[/] {escape(text)}', highlight=False)
    counts = {
        severity: sum(each.severity == severity for each in report.findings)
        for severity in Severity
    }
    console.print(
        ', '.join(
            f'{counts[severity]} {word}{"" if counts[severity] == 1 else "s"}'
            for severity, word in (
                (Severity.ERROR, 'error'),
                (Severity.WARNING, 'warning'),
                (Severity.INFO, 'note'),
            )
        ),
        highlight=False,
    )
