"""The result of a preflight: as data, as JSON, in a terminal and as a page."""

import platform
import sys
from collections.abc import Sequence
from shlex import quote
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from ...utils.cli import tool_command
from ...version import __version__
from ..config import DELETE
from ..ddp import Outcome, SyncSettings
from ..findings import (
    Finding,
    Severity,
    as_record,
    find_rule,
    page,
    rules_of,
    sarif_log,
    sarif_result,
    terminal,
    to_json,
)
from .dry_run.rehearsal import GIB, RehearsedStep
from .dry_run.run import DryRun

_MAX_NAMES = 6
_MAX_LOSSES = 6
# With few findings, there is room for all names on the page.
_OPEN = 8
_HOSTS = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain')


def _versions() -> dict[str, str]:
    """Of Python, of mmext, and of what is loaded of its hosts."""
    loaded = [name for name in _HOSTS if name in sys.modules]
    return {
        'python': f'{platform.python_version()}, {platform.platform()}',
        'mmext': __version__,
        **{name: str(sys.modules[name].__version__) for name in loaded},
    }


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


class RehearsalReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a step would do on a GPU.

    Attributes:
        size: Height and width of its pictures, in pixels.
        batch_size: Number of pictures.
        reads: How often the host waits.
        uploads: How often the GPU gets something from the host.
        launches: Operators on the GPU.
        peak: Bytes that are alive at the peak.
        most: The same with what a GPU may need beside it.
        parts: What ``peak`` is made of, in bytes, by kind.
        largest: Of what is alive then: bytes, kind and call site.
    """

    size: tuple[int, int]
    batch_size: int
    reads: int
    uploads: int
    launches: int
    peak: int
    most: int
    parts: dict[str, int]
    largest: tuple[tuple[int, str, str], ...]


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a preflight has found.

    Attributes:
        schema_version: Of the JSON form; it grows when a field changes
            meaning.
        versions: Of Python and the packages.
        config: File, as it was given.
        task: ``'detection'``, ``'semantic'``, ...; empty if no model could
            be built.
        trainable: Parameters that require a gradient, as tensors.
        values: Numbers in them.
        settings: What the config sets the model wrapper to.
        batches: What was run.
        verdicts: Of each combination of settings; None without a step.
        world: What processes did; None if none were started.
        rehearsal: Of a step on a GPU; None if none went through.
        notes: What was changed to build the model.
        not_done: What could not be looked at, and why.
        warned: What libraries and code of the user warned of meanwhile.
        findings: The worst first.
    """

    schema_version: int = 1
    versions: dict[str, str] = msgspec.field(default_factory=_versions)
    config: str
    task: str = ''
    trainable: int = 0
    values: int = 0
    settings: SyncSettings = SyncSettings()
    batches: tuple[BatchReport, ...] = ()
    verdicts: Any = None
    world: Any = None
    rehearsal: RehearsalReport | None = None
    notes: tuple[str, ...] = ()
    not_done: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def worst(self) -> Severity | None:
        """The severity of the worst finding; None without any."""
        return max(
            (finding.severity for finding in self.findings), default=None
        )


class _FindingRecord(
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
    other_way: str = ''


def make_batch_reports(dry_run: DryRun) -> tuple[BatchReport, ...]:
    """Sum up what was run: one report for each kind of batch, in order."""
    errors = {
        crash.kind: f'{crash.error} in step {crash.step + 1} ({crash.phase}): '
        f'{crash.message}'
        for crash in dry_run.crashes
    }
    reports = []
    for kind, steps in dry_run.steps.items():
        terms = [term for step in steps[:1] for term in step.losses]
        reports.append(
            BatchReport(
                kind=kind,
                steps=len(steps),
                losses={
                    term.name: term.value for term in terms if term.summed
                },
                unused=len(steps[0].usage.unused) if steps else 0,
                error=errors.get(kind, ''),
            )
        )
    return tuple(reports)


def make_rehearsal_report(
    step: RehearsedStep | None,
) -> RehearsalReport | None:
    """Sum up a rehearsal, if there is one."""
    done = step and step.done
    if done is None:
        return None
    memory = done.memory
    return RehearsalReport(
        size=step.size,
        batch_size=step.batch_size,
        reads=sum(done.reads.values()),
        uploads=sum(done.uploads.values()),
        launches=sum(done.launches.values()),
        peak=memory.peak,
        most=memory.most,
        parts=dict(memory.parts),
        largest=tuple((n, kind, str(at)) for n, kind, at in memory.largest),
    )


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The worst first, then by rule, key and text."""

    def order(finding: Finding) -> tuple:
        return -finding.severity, finding.rule, finding.key, finding.message

    return tuple(sorted(findings, key=order))


def report_json(report: PreflightReport) -> bytes:
    """JSON of a report: UTF-8, keys in a fixed order, a newline at the end."""
    form = msgspec.structs.asdict(report)
    form['findings'] = [
        as_record(finding, _FindingRecord) for finding in report.findings
    ]
    return to_json(form)


def report_sarif(report: PreflightReport) -> bytes:
    """SARIF of a report: a result for each finding, at its line.

    What is about no line is located at the config.
    """
    named = dict.fromkeys(finding.rule for finding in report.findings)
    results = []
    for finding in report.findings:
        location = finding.location
        if not location.file:
            location = msgspec.structs.replace(location, file=report.config)
        text = f'{finding.message}. Remedy: {finding.remedy}'
        results.append(
            sarif_result(finding.rule, finding.severity, text, location)
        )
    return sarif_log('preflight', list(map(find_rule, named)), results)


def _batch_table(report: PreflightReport) -> Table:
    table = Table('batch', 'steps', 'losses of the first step', box=None)
    table.add_column('unused', no_wrap=True)
    for batch in report.batches:
        shown = [f'{k} {v:.4g}' for k, v in batch.losses.items()]
        losses = ', '.join(shown[:_MAX_LOSSES])
        if len(shown) > _MAX_LOSSES:
            total = sum(batch.losses.values())
            losses += f' and {len(shown) - _MAX_LOSSES} more, sum {total:.4g}'
        table.add_row(
            batch.kind,
            str(batch.steps),
            terminal.cell(batch.error or losses),
            str(batch.unused),
        )
    return table


def _verdict_table(verdicts: Any) -> Table:
    table = Table(box=None)
    table.add_column('settings of DDP', no_wrap=True)
    for name in ('checkpoints', 'outcome', ''):
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
        flags = [
            f'{name}=True'
            for name in ('find_unused_parameters', 'static_graph')
            if getattr(row, name)
        ]
        colour = 'green' if row.works else 'red'
        table.add_row(
            ', '.join(flags) or 'neither flag',
            terminal.cell(row.checkpointing),
            f'[{colour}]{terminal.cell(row.outcome)}[/]',
            ', '.join(marks),
        )
    return table


def _by_rule(findings: Sequence[Finding]) -> str:
    """What is wrong, and where, a few words for each rule."""
    locations: dict[str, dict[str, None]] = {}
    for finding in findings:
        where = terminal.location_of(finding.location) or finding.key
        if finding.names and finding.rule in rules_of('label_check'):
            where = finding.names[0]
        rule = find_rule(finding.rule)
        title = finding.message if rule is None else rule.title
        of_rule = locations.setdefault(f'{title} ({finding.rule})', {})
        of_rule[where or 'the model'] = None
    return terminal.in_words(
        f'{title} at {terminal.in_words(where)}'
        for title, where in locations.items()
    )


def verdict_of(report: PreflightReport) -> str:
    """What a preflight comes to, in one sentence that says what to do."""
    name = report.config
    kinds = [batch.kind for batch in report.batches if batch.steps]
    errors, warnings = (
        [f for f in report.findings if f.severity is severity]
        for severity in (Severity.ERROR, Severity.WARNING)
    )
    if errors:
        number = 'the error'
        if errors[1:]:
            number = f'{len(errors)} errors'
        fixes = sum(bool(finding.options) for finding in errors)
        tool = f'{tool_command("preflight")} {quote(name)} --fix'
        after = f'; {tool} can mend {fixes} of {len(errors)}' if fixes else ''
        return (
            f'Do not train with {name} yet: mend {number}: '
            f'{_by_rule(errors)}{after}.'
        )
    if not kinds:
        why = report.not_done[0] if report.not_done else 'no step was run'
        return f'Not known whether {name} can be trained: {why}.'
    left = '; see below what could not be checked' if report.not_done else ''
    tried = terminal.in_words(kinds, len(kinds))
    if warnings:
        number = f'{len(warnings)} {page.plural(len(warnings), "warning")}'
        return (
            f'{name} can be trained, but look at {number} first: steps with '
            f'{tried} batches went through{left}.'
        )
    return (
        f'{name} can be trained: steps with {tried} batches went through, '
        f'and nothing is wrong in what was checked{left}.'
    )


def _print_finding(
    console: Console, finding: Finding, config: str, verbose: bool
) -> None:
    location = terminal.location_of(finding.location)
    terminal.print_heading(
        console, finding.severity, finding.rule, finding.message, location
    )
    if finding.file or finding.key:
        terminal.print_source(console, finding.location)
    most = len(finding.names) if verbose else _MAX_NAMES
    names = terminal.in_words(finding.names, most)
    if len(finding.names) > most:
        names += ' (--verbose names all)'
    rule = finding.names and rules_of('label_check').get(finding.rule)
    # Label files of YOLO are not repaired.
    fixed = rule and rule.fix and not finding.names[0].endswith('.txt')
    tool = f'{tool_command("validate_labels")} {quote(config)}'
    lines = [
        ('    names: ', names),
        ('    with batches: ', ', '.join(finding.batches)),
        ('    remedy: ', '' if finding.other_way else finding.remedy),
        ('    either: ', finding.remedy if finding.other_way else ''),
        ('    or: ', finding.other_way),
        ('    all locations: ', rule and f'{tool} --all'),
        ('    repaired copies: ', fixed and f'{tool} --fix DIR'),
    ]
    for label, text in lines:
        if text:
            terminal.print_text(console, text, label)
    for text in _changes(finding.options):
        text += f' ({tool_command("preflight")} --fix writes it)'
        terminal.print_text(console, text, '    fix: ')


def _changes(options: dict[str, Any]) -> list[str]:
    """Changes of keys, each in words."""
    return [
        f'remove {key}'
        if isinstance(value, str) and value == DELETE
        else f'{key} = {value!r}'
        for key, value in options.items()
    ]


def _size(report: PreflightReport) -> str:
    """What is trained, in words."""
    return (
        f'{report.trainable:,} parameter tensors to train '
        f'({report.values / 1e6:,.1f} M values)'
    )


def _world(report: PreflightReport) -> str:
    """What real processes did; empty if none were started."""
    world = report.world
    if world is None:
        return ''
    observed, predicted = (
        Outcome[name.upper()].value
        if name.upper() in Outcome.__members__
        else name
        for name in (world.observed, world.predicted)
    )
    return (
        f'real processes {"agree" if world.agrees else "DISAGREE"}: '
        f'{observed} (predicted: {predicted})'
    )


def _matters(report: PreflightReport, family: str) -> bool:
    """Whether there is an error of a family of rules.

    A step that ended with an error says all there is to say itself.
    """
    return any(
        finding.rule.startswith(family) and finding.rule != 'STEP001'
        for finding in report.findings
        if finding.severity is Severity.ERROR
    )


def _print_run(
    report: PreflightReport, console: Console, verbose: bool
) -> None:
    """What was run, as far as it matters."""
    if verbose:
        text = f'{report.task}, {_size(report)}' if report.task else 'no model'
        terminal.print_text(console, text, 'model: ')
        for note in report.notes:
            terminal.print_text(console, note, '  note: ')
    if report.batches and (verbose or _matters(report, 'STEP')):
        console.print()
        terminal.print_table(console, _batch_table(report))
    if report.verdicts is not None and (verbose or _matters(report, 'DDP')):
        console.print()
        terminal.print_table(console, _verdict_table(report.verdicts))
        terminal.print_text(console, report.verdicts.reason, '  ')
    if report.world is not None:
        terminal.print_text(console, _world(report))


def print_report(
    report: PreflightReport, console: Console, *, verbose: bool = False
) -> None:
    """Print the verdict, and what was found, the worst last.

    Args:
        report: Of a preflight.
        console: See :func:`~mmext.checks.findings.terminal.make_console`.
        verbose: Print what was run and all names, too, where nothing is
            wrong with them.
    """
    worst = report.worst()
    if worst is not Severity.ERROR and not any(
        batch.steps for batch in report.batches
    ):
        worst = Severity.WARNING
    if worst is Severity.INFO:
        worst = None
    terminal.print_verdict(console, worst, verdict_of(report))
    _print_run(report, console, verbose)
    for text in report.not_done:
        console.print()
        terminal.print_text(console, text, 'incomplete: ', 'bold yellow')
    for text in report.warned:
        console.print()
        terminal.print_text(console, text, 'warned meanwhile: ', 'bold cyan')
    for finding in sorted(report.findings, key=lambda item: item.severity):
        console.print()
        _print_finding(console, finding, report.config, verbose)
    console.print()
    fixes = sum(bool(finding.options) for finding in report.findings)
    tool = f'{tool_command("preflight")} --fix'
    after = f'; {fixes} with a fix, which {tool} writes' if fixes else ''
    terminal.print_counts(
        console, (finding.severity for finding in report.findings), after
    )


def report_html(report: PreflightReport) -> bytes:
    """One page for a browser, as UTF-8, that loads nothing.

    It can be read without JavaScript, which only sorts and filters.
    """
    tiles = page.tiles((finding.severity, 1) for finding in report.findings)
    verdicts = report.verdicts
    content = {
        'report': report,
        'size': _size(report),
        'verdict': page.summary(tiles),
        'worst': page.severity_word(report.worst()),
        'tiles': tiles,
        'word': page.severity_word,
        'location': terminal.location_of,
        'gib': lambda size: f'{size / GIB:,.2f} GiB',
        'changes': _changes,
        'rules': sorted({finding.rule for finding in report.findings}),
        'open': len(report.findings) <= _OPEN,
        'verdicts': () if verdicts is None else verdicts.rows,
        'world': _world(report).replace('real', 'Real', 1),
    }
    return page.render(__package__, 'preflight.html.jinja', page=content)
