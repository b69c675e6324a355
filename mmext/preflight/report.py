"""The result of a preflight: as data, as JSON, in a terminal and as a page."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..ddp import Outcome, SyncSettings
from ..findings import Finding, Severity, as_record, page, terminal, to_json
from .dry_run.facts import DryRun

__all__ = [
    'BatchReport',
    'PreflightReport',
    'make_batch_reports',
    'outcome_words',
    'print_report',
    'report_html',
    'report_json',
    'sort_findings',
]

SCHEMA_VERSION = 1
_MAX_NAMES = 6
_MAX_LOSSES = 6
# With few findings, there is room for all names on the page.
_OPEN = 8


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one kind of batch.

    Attributes:
        kind: ``'normal'``, ``'empty'``, ...
        steps: That ran to their end.
        losses: Names and values of the first step, as far as they are
            summed.
        unused: Trainable parameters without a gradient in the first step.
        error: What ended it; empty if nothing did.
    """

    kind: str
    steps: int
    losses: dict[str, float]
    unused: int
    error: str = ''


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a preflight has found.

    Attributes:
        schema_version: Of the JSON form; it grows when a field changes
            meaning.
        config: File, as it was given.
        task: ``'detection'``, ``'semantic'``, ...; empty if no model could
            be built.
        trainable: Parameters that require a gradient, as tensors.
        settings: What the config sets the model wrapper to.
        batches: What was run.
        verdicts: Of each combination of settings; None without a step.
        world: What processes did; None if none were started.
        notes: What was changed to build the model.
        not_done: What could not be looked at, and why.
        findings: The worst first.
    """

    schema_version: int = SCHEMA_VERSION
    config: str
    task: str = ''
    trainable: int = 0
    settings: SyncSettings = SyncSettings()
    batches: tuple[BatchReport, ...] = ()
    verdicts: Any = None
    world: Any = None
    notes: tuple[str, ...] = ()
    not_done: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def worst(self) -> Severity | None:
        """The severity of the worst finding; None without any."""
        return max(
            (finding.severity for finding in self.findings), default=None
        )


class FindingRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True
):
    """A finding in the JSON form; fields as of a finding and its location."""

    rule: str
    severity: Severity
    message: str
    remedy: str
    key: str = ''
    file: str = ''
    line: int = 0
    names: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()
    options: dict[str, Any] = {}


def make_batch_reports(proof: DryRun) -> tuple[BatchReport, ...]:
    """Sum up what was run: one report for each kind of batch, in order."""
    errors = {
        crash.kind: f'{crash.error} in step {crash.step + 1} ({crash.phase}): '
        f'{crash.message}'
        for crash in proof.crashes
    }
    reports = []
    for kind, steps in proof.steps.items():
        losses = steps[0].losses if steps else ()
        reports.append(
            BatchReport(
                kind=kind,
                steps=len(steps),
                losses={
                    term.name: term.value for term in losses if term.summed
                },
                unused=len(steps[0].usage.unused) if steps else 0,
                error=errors.get(kind, ''),
            )
        )
    return tuple(reports)


def outcome_words(name: str) -> str:
    """What an outcome means, by its name in lower case; others stay."""
    outcome = Outcome.__members__.get(name.upper())
    return outcome.value if outcome is not None else name


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The worst first, then by rule, key and text."""

    def order(finding: Finding) -> tuple:
        return -finding.severity, finding.rule, finding.key, finding.message

    return tuple(sorted(findings, key=order))


def report_json(report: PreflightReport) -> bytes:
    """JSON of a report: UTF-8, keys in a fixed order, a newline at the end."""
    form = msgspec.structs.asdict(report)
    form['findings'] = [
        as_record(finding, FindingRecord) for finding in report.findings
    ]
    return to_json(form)


def _batch_table(report: PreflightReport) -> Table:
    table = Table(title='batches', title_justify='left')
    for name in ('kind', 'steps', 'losses of the first step', 'unused'):
        table.add_column(name)
    for batch in report.batches:
        shown = [f'{k} {v:.4g}' for k, v in batch.losses.items()]
        losses = ', '.join(shown[:_MAX_LOSSES])
        if len(shown) > _MAX_LOSSES:
            total = sum(batch.losses.values())
            losses += f' and {len(shown) - _MAX_LOSSES} more, sum {total:.4g}'
        table.add_row(
            batch.kind,
            str(batch.steps),
            escape(batch.error or losses),
            str(batch.unused),
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


def _place(finding: Finding) -> str:
    """File and line of a finding; empty if they are not known."""
    return f'{finding.file}:{finding.line}' if finding.file else ''


def _print_finding(console: Console, finding: Finding) -> None:
    terminal.print_heading(
        console, finding.severity, finding.rule, finding.message
    )
    place = _place(finding)
    lines = [
        (finding.key + (f' ({place})' if place else ''), '    '),
        (_names(finding.names), '    '),
        (', '.join(finding.batches), '    with batches: '),
    ]
    for text, before in lines:
        if text:
            terminal.print_line(console, text, before)
    terminal.print_line(console, f'  remedy: {finding.remedy}')


def _world(report: PreflightReport, agree: str, disagree: str) -> str:
    """What real processes did; empty if none were started."""
    world = report.world
    if world is None:
        return ''
    return (
        f'{agree if world.agrees else disagree}: '
        f'{outcome_words(world.observed)} (predicted: '
        f'{outcome_words(world.predicted)})'
    )


def _reasons(verdicts: Any) -> list[str]:
    """What follows from the table of settings."""
    if verdicts is None:
        return []
    texts = (verdicts.reason, verdicts.fix, verdicts.cost)
    return [text for text in texts if text]


def print_report(report: PreflightReport, console: Console) -> None:
    """Print what was found, the worst last, where the eye is."""
    title = f'preflight of {report.config}'
    if report.task:
        title += f': {report.task}, {report.trainable:,} trainable parameters'
    console.print(escape(title), style='bold', highlight=False)
    for note in report.notes:
        terminal.print_line(console, f'  {note}')
    if report.batches:
        console.print(_batch_table(report))
    if report.verdicts is not None:
        console.print(_verdict_table(report.verdicts))
    for text in _reasons(report.verdicts):
        terminal.print_line(console, text)
    if report.world is not None:
        words = ('real processes agree', 'real processes DISAGREE')
        terminal.print_line(console, _world(report, *words))
    for finding in reversed(report.findings):
        _print_finding(console, finding)
    for text in report.not_done:
        terminal.print_line(console, text, '[yellow]not done[/] ')
    terminal.print_counts(
        console, (finding.severity for finding in report.findings)
    )


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {
        'word': page.severity_word(finding.severity),
        'rank': int(finding.severity),
        'rule': finding.rule,
        'message': finding.message,
        'remedy': finding.remedy,
        'key': finding.key,
        'place': _place(finding),
        'names': finding.names,
        'batches': ', '.join(finding.batches),
        'options': [
            f'{key} = {value!r}' for key, value in finding.options.items()
        ],
    }


def _batch_row(batch: BatchReport) -> dict[str, Any]:
    losses = (f'{name} {value:.4g}' for name, value in batch.losses.items())
    return {
        'kind': batch.kind,
        'steps': batch.steps,
        'unused': batch.unused,
        'error': batch.error,
        'text': ', '.join(losses),
    }


def report_html(report: PreflightReport) -> bytes:
    """One page for a browser, as UTF-8, that loads nothing.

    It can be read without JavaScript, which only sorts and filters.
    """
    tiles = page.tiles((finding.severity, 1) for finding in report.findings)
    verdicts = report.verdicts
    content = {
        'config': report.config,
        'task': report.task,
        'trainable': report.trainable,
        'verdict': page.summary(tiles),
        'worst': page.severity_word(report.worst()),
        'tiles': tiles,
        'not_done': report.not_done,
        'notes': report.notes,
        'findings': [_finding_row(finding) for finding in report.findings],
        'rules': sorted({finding.rule for finding in report.findings}),
        'open': len(report.findings) <= _OPEN,
        'verdicts': () if verdicts is None else verdicts.rows,
        'reasons': _reasons(verdicts),
        'world': _world(
            report, 'Real processes agree', 'Real processes disagree'
        ),
        'batches': [_batch_row(batch) for batch in report.batches],
    }
    return page.render(__package__, 'preflight.html.jinja', page=content)
