"""What ``tools/preflight.py`` does, from its settings to the report."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from mmengine.config import Config
from mmengine.logging import MMLogger
from rich.console import Console

from ..apis.detector import read_config
from ..utils.files import atomic_path
from .building import Built
from .config_places import key_place
from .current_settings import current_settings
from .examine import examine
from .findings import PreflightFinding, Severity
from .fixing import collect_changes, fixed_path, write_fixed_config
from .lint import label_findings, lint_config
from .proof import Proof, proof_findings, verdict_table
from .proof.world import run_world_config
from .report import (
    PreflightReport,
    make_batch_reports,
    report_json,
    sort_findings,
)
from .report_table import print_report
from .settings import PreflightSettings, check_settings
from .sync_cures import SyncSettings
from .world_findings import world_findings

__all__ = ['preflight', 'run_preflight']

Tell = Callable[[str], Any]

# What is not finite in a loss, and in a gradient.
_OF_VALUES = ('STEP003', 'STEP004')


def preflight(
    settings: PreflightSettings,
    cfg: Config | None = None,
    tell: Tell = lambda text: None,
) -> PreflightReport:
    """Look at a config, build it, train it for a few steps, and judge.

    Args:
        settings: What to do. Nothing is written.
        cfg: The config, where it is no file; ``settings.config`` is then
            its name in the report.
        tell: Called with what is being done.

    Returns:
        The report. What could not be done is in ``not_done``.

    Raises:
        FileNotFoundError: If there is no such config.
        ValueError: If a setting is not as said.
    """
    with _quiet():
        return _look(settings, cfg, tell)


def _look(
    settings: PreflightSettings, cfg: Config | None, tell: Tell
) -> PreflightReport:
    """See :func:`preflight`."""
    if cfg is None:
        check_settings(settings)
        cfg = read_config(settings.config, cfg_options=settings.cfg_options)
    current = current_settings(cfg)
    found = examine(cfg, settings, tell)
    built, proof, not_done = found.built, found.proof, found.not_done
    tell('reading the config')
    findings = lint_config(
        cfg,
        file=settings.config,
        model=None if built is None else built.model,
    )
    if settings.labels:
        tell('looking at the labels')
        findings += _labels(cfg, settings, not_done)
    verdicts = world = None
    if proof is not None:
        findings += _of_proof(proof, current, found.notes)
        if any(proof.steps.values()):
            verdicts = verdict_table(proof, current)
    if settings.world and proof is not None:
        tell(f'asking {settings.world} processes')
        world = _ask_processes(proof, settings, not_done)
        findings += world_findings(world)
    return PreflightReport(
        config=settings.config,
        task=built.task if built is not None else '',
        trainable=_num_trainable(built),
        settings=current,
        batches=make_batch_reports(proof) if proof is not None else (),
        verdicts=verdicts,
        world=world,
        notes=tuple(found.notes),
        not_done=tuple(not_done),
        findings=sort_findings(_with_places(findings, settings)),
    )


def _of_proof(
    proof: Proof, current: SyncSettings, notes: Sequence[str]
) -> list[PreflightFinding]:
    """Findings of a proof; with random weights, overflow proves little."""
    findings = proof_findings(proof, current)
    if not any(note.endswith('are not loaded') for note in notes):
        return findings
    return [
        msgspec.structs.replace(
            each,
            severity=min(each.severity, Severity.WARNING),
            message=f'{each.message}; the weights are random here',
        )
        if each.rule in _OF_VALUES
        else each
        for each in findings
    ]


def _num_trainable(built: Built | None) -> int:
    if built is None:
        return 0
    return sum(each.requires_grad for each in built.model.parameters())


def _labels(
    cfg: Config, settings: PreflightSettings, not_done: list[str]
) -> list[PreflightFinding]:
    try:
        return label_findings(cfg, store=settings.store)
    except (FileNotFoundError, NotADirectoryError) as error:
        text = ' '.join(str(error).split())
        not_done.append(f'labels were not checked: {text}')
        return []


def _ask_processes(
    proof: Proof, settings: PreflightSettings, not_done: list[str]
) -> Any:
    """What real processes do; None where there is no step to run."""
    crashed = {each.kind for each in proof.crashes}
    kinds = [kind for kind, steps in proof.steps.items() if steps]
    kinds = tuple(kind for kind in kinds if kind not in crashed)
    if not kinds:
        not_done.append('no processes were started: no batch goes through')
        return None
    return run_world_config(
        settings.config,
        settings.cfg_options,
        kinds=kinds,
        steps=settings.steps,
        world=settings.world,
        batch_size=settings.batch_size or 2,
    )


def _with_places(
    findings: Sequence[PreflightFinding], settings: PreflightSettings
) -> list[PreflightFinding]:
    """Findings with file and line of their key, where there is a file."""
    if not Path(settings.config).is_file():
        return list(findings)
    placed = []
    for finding in findings:
        if finding.key and not finding.file:
            file, line = key_place(settings.config, finding.key)
            finding = msgspec.structs.replace(
                finding, file=str(file or ''), line=line
            )
        placed.append(finding)
    return placed


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the hosts' log messages wait, errors excepted.

    Weights that are not loaded and layers that are frozen are told, each by
    a line; what matters of it is among the findings.
    """
    logger = MMLogger.get_current_instance()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _status() -> Iterator[Tell]:
    """A line on standard error that tells what is being done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status('starting') as status:
        yield lambda text: status.update(f'{text} ...')


def _write(settings: PreflightSettings, report: PreflightReport) -> None:
    forms = [(settings.json, report_json)]
    if settings.html is not None:
        from .report_html import report_html

        forms.append((settings.html, report_html))
    for file, form in forms:
        if file is not None:
            with atomic_path(str(file)) as temporary:
                Path(temporary).write_bytes(form(report))


def _fix(
    settings: PreflightSettings, report: PreflightReport, console: Console
) -> None:
    """Write the mended config, and look at that, too."""
    changes = collect_changes(report.findings)
    for text in changes.refused:
        console.print(text)
    if not changes.options:
        console.print('no finding has a change of the config to offer')
        return
    path = write_fixed_config(settings.config, changes, settings.fix)
    console.print(f'wrote {path}; the same preflight of it:')
    again = msgspec.structs.replace(settings, config=str(path))
    print_report(preflight(again), console)


def run_preflight(
    settings: PreflightSettings, console: Console | None = None
) -> int:
    """Run a preflight, print it, and write what is asked for.

    Args:
        settings: What to do.
        console: For the report; None for standard output.

    Returns:
        0 without a finding at or above ``fail_on``, 1 with one, 2 if no
        step could be run.

    Raises:
        FileExistsError: If ``fix`` names a file that exists.
        FileNotFoundError: If there is no such config.
        ValueError: If a setting is not as said.
    """
    check_settings(settings)
    console = console or Console()
    if settings.fix is not None:
        path = fixed_path(settings.config, settings.fix)
        if path.exists():
            raise FileExistsError(
                f'--fix must name a new file, got {path}, which exists'
            )
    with _status() as tell:
        report = preflight(settings, tell=tell)
    print_report(report, console)
    _write(settings, report)
    if settings.fix is not None:
        _fix(settings, report, console)
    worst = report.worst()
    if worst is not None and worst >= Severity[settings.fail_on.upper()]:
        return 1
    return 0 if any(each.steps for each in report.batches) else 2
