"""A preflight, from its settings to the report.

:func:`preflight` follows a config from left to right: it is read, its model
is built and run dry on batches, the rules look at the config, at the labels
and at the dry run, real processes confirm the outcome, and the findings get
their file and line. :func:`run_preflight` is the tool: it prints and writes
the report, and writes the fixed config.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import torch
from mmengine.config import Config
from rich.console import Console
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ...utils.files import atomic_path, prepare_outputs
from ...utils.quiet_hosts import collected_warnings
from ...utils.safe_load import careful_readers
from ..config import (
    RightPlaces,
    RunnerKind,
    config_file,
    key_place,
    read_config,
)
from ..ddp import SyncSettings, bypassed_methods, has_own_train_step
from ..findings import (
    Finding,
    Location,
    Severity,
    rules_of,
    terminal,
)
from ..labels.sources import NothingToCheckError
from .batches.making import SIGNATURE, check_kinds, make_batches
from .build import Built, build_for_preflight
from .dry_run.facts import DryRun
from .dry_run.options import current_settings
from .dry_run.run import dry_run_model
from .dry_run.verdicts import verdict_table
from .fix import fix_config, fixed_path
from .parts import Failure, build_parts
from .ranks import WorldResult, run_world_config
from .reference import rule_reference
from .report import (
    PreflightReport,
    make_batch_reports,
    print_report,
    report_html,
    report_json,
    report_sarif,
    sort_findings,
)
from .rules.builds import build_findings
from .rules.labels import label_findings, without_known
from .rules.registry import contained, lint_config
from .rules.steps import proof_findings, world_findings
from .sandbox import CannotBuildError, quiet

Report = Callable[[str], Any]

# What a layer raises that a picture is too small for.
_SIZE_ERRORS = ('AssertionError', 'RuntimeError', 'ValueError')
# What is not finite in a loss, and in a gradient.
_VALUE_RULES = ('STEP003', 'STEP004')


class PreflightSettings(msgspec.Struct, kw_only=True):
    """Settings of a preflight; those of the tool, by the same names.

    Attributes:
        config: Config file.
        cfg_options: Settings to put over it.
        batches: Kinds of batches: ``'normal'``, ``'empty'``,
            ``'one-class'``, ``'crowded'``, or ``'real'`` for those of the
            config's data.
        steps: Of the first kind, at least 2: the second shows what the
            first one has left behind. The other kinds get one.
        batch_size: Samples of a batch; 0 for 2 where a model computes
            statistics of batches, which one sample may not suffice for, and
            else 1.
        image_size: Height and width of made-up pictures; None for what suits
            the model.
        device: Where the model runs.
        world: Processes to confirm the verdict with; 0 for none.
        labels: Check the labels of the data, too, if they are there.
        splits: Those whose labels are checked.
        store: File that keeps what was read of them, see
            :class:`~mmext.checks.labels.run.check_labels`.
        fail_on: Least severity that makes the exit code 1.
        json: File for the report; None for none.
        sarif: The same in SARIF.
        html: The same as a page to read.
        verbose: Print what was run, and all names, too.
        environ: Variables that the training is going to see; None for those
            of this process.
        fix: File for a config that inherits this one and has its findings
            fixed; None for none, ``Path('')`` for a name of its own beside
            the config.
    """

    config: str
    cfg_options: dict | None = None
    batches: Sequence[str] = ('normal', 'empty', 'one-class', 'crowded')
    steps: int = 2
    batch_size: int = 0
    image_size: tuple[int, int] | None = None
    device: str = 'cpu'
    world: int = 0
    labels: bool = True
    splits: Sequence[str] = ('train', 'val')
    store: Path = Path('work_dirs/label_check.sqlite')
    fail_on: str = 'error'
    json: Path | None = None
    sarif: Path | None = None
    html: Path | None = None
    verbose: bool = False
    environ: dict[str, str] | None = None
    fix: Path | None = None


def list_rules(form: str = 'table', console: Console | None = None) -> None:
    """Print the rules of both checkers, as a table or as markdown."""
    if form == 'markdown':
        print(rule_reference(), end='')
        return
    tools = ('preflight', 'label_check')
    rules = (rule for tool in tools for rule in rules_of(tool).values())
    terminal.print_rules(rules, console or terminal.make_console())


def check_settings(settings: PreflightSettings) -> None:
    """FileNotFoundError or ValueError for settings that cannot be."""
    if not Path(settings.config).is_file():
        raise FileNotFoundError(
            f'config must be an existing file, got {settings.config}'
        )
    check_kinds(settings.batches)
    if settings.steps < 2:
        raise ValueError(
            '--steps must be at least 2, as the second step shows what the '
            f'first has left behind, got {settings.steps}'
        )
    if settings.batch_size < 0:
        raise ValueError(
            '--batch-size must be at least 1, or 0 for what suits the model, '
            f'got {settings.batch_size}'
        )
    if settings.world < 0 or settings.world == 1:
        raise ValueError(
            '--world must be 2 or more processes, or 0 for none, got '
            f'{settings.world}'
        )
    try:
        torch.empty(0, device=settings.device)
    # A PyTorch without CUDA says so by an assertion.
    except (AssertionError, RuntimeError) as error:
        raise ValueError(
            '--device must be one that PyTorch can use here, got '
            f'{settings.device!r}: {error}'
        ) from error
    size = settings.image_size
    if size is not None and min(size) < 1:
        raise ValueError(
            f'--image-size must be two positive numbers, got {size}'
        )


def preflight(
    settings: PreflightSettings,
    cfg: Config | None = None,
    progress: Report = lambda text: None,
) -> PreflightReport:
    """Look at a config, build it and train it for a few steps.

    Args:
        settings: What to do. Nothing is written.
        cfg: The config, where it is no file; ``settings.config`` is then
            its name in the report.
        progress: Called with what is being done.

    Returns:
        The report. What could not be done is in ``not_done``.

    Raises:
        FileNotFoundError: If there is no such config.
        ValueError: If a setting is out of range.
    """
    with quiet(), ExitStack() as stack:
        if cfg is None:
            check_settings(settings)
            cfg = read_config(
                settings.config, cfg_options=settings.cfg_options
            )
        trust = cfg.get('trust_checkpoint') is True
        stack.enter_context(careful_readers(trust))
        current = current_settings(cfg)
        trial = _try_model(cfg, settings, progress)
        findings = _apply_rules(cfg, settings, trial, current, progress)
        built, dry_run = trial.built, trial.dry_run
        verdicts = world = None
        if dry_run is not None and dry_run.is_telling:
            with contained(findings, 'predicting what the wrapper does'):
                verdicts = verdict_table(dry_run, current)
        with contained(findings, 'running processes', severity=Severity.ERROR):
            world = _run_processes(settings, trial, progress)
        rows = () if verdicts is None else verdicts.rows
        works = any(row.works for row in rows if row.current)
        findings += world_findings(world, works)
        findings = _with_locations(findings, settings)
    parameters = () if built is None else built.model.parameters()
    trained = [each for each in parameters if each.requires_grad]
    return PreflightReport(
        config=settings.config,
        task='' if built is None else built.task,
        trainable=len(trained),
        values=sum(each.numel() for each in trained if not is_lazy(each)),
        settings=current,
        batches=() if dry_run is None else make_batch_reports(dry_run),
        verdicts=verdicts,
        world=world,
        notes=tuple(trial.notes),
        not_done=tuple(trial.not_done),
        findings=sort_findings(findings),
    )


@dataclass
class _Trial:
    """What came of building a model and running it.

    Attributes:
        built: The model and what belongs to it; None if it was not built.
        dry_run: What was seen; None if no batch was made.
        notes: What was changed to build and to train it.
        not_done: What could not be done, and why.
        failures: Parts that could not be built.
        findings: Of parts of the preflight that ended with an exception.
    """

    built: Built | None = None
    dry_run: DryRun | None = None
    notes: list[str] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def _try_model(
    cfg: Config, settings: PreflightSettings, progress: Report
) -> _Trial:
    """Build a model and run it dry.

    Made-up pictures are small; a model that fails on them is tried once more
    on pictures as large as those of its training.
    """
    size = settings.image_size
    # Real pictures are as large as they are.
    if size is None and 'real' in settings.batches:
        size = 'declared'
    trial = _build_and_run(cfg, settings, size, progress)
    if size is None and _may_be_too_small(trial):
        progress('once more, with pictures as large as those of the training')
        again = _build_and_run(cfg, settings, 'declared', progress)
        if again.dry_run and next(iter(again.dry_run.steps.values())):
            again.notes.append(
                f'pictures of {trial.built.recipe.size} are too small for it '
                f'({trial.dry_run.crashes[0].message}); they have '
                f'{again.built.recipe.size}'
            )
            return again
    return trial


def _may_be_too_small(trial: _Trial) -> bool:
    """Whether the first step of the first kind ended with such an error."""
    if trial.dry_run is None or not trial.dry_run.crashes:
        return False
    crash, recipe = trial.dry_run.crashes[0], trial.built.recipe
    return (
        crash.kind == next(iter(trial.dry_run.steps))
        and crash.step == 0
        and crash.error in _SIZE_ERRORS
        and tuple(recipe.size) != tuple(recipe.declared_size)
    )


def _build_and_run(
    cfg: Config,
    settings: PreflightSettings,
    size: tuple[int, int] | str | None,
    progress: Report,
) -> _Trial:
    trial = _Trial()
    progress('building the model')
    with contained(
        trial.findings,
        'building the model',
        key='model',
        severity=Severity.ERROR,
    ):
        _build(cfg, settings, size, trial)
    if trial.built is None:
        return trial
    progress('making batches')
    with contained(
        trial.findings,
        'training steps of the model',
        severity=Severity.ERROR,
    ):
        _run_steps(cfg, settings, trial, progress)
    return trial


def _build(
    cfg: Config,
    settings: PreflightSettings,
    size: tuple[int, int] | str | None,
    trial: _Trial,
) -> None:
    """Build the model, and say what was not built."""
    try:
        built = build_for_preflight(cfg, device=settings.device, size=size)
    except CannotBuildError as error:
        trial.not_done.append(f'the model was not built: {error}')
        if error.failure is not None:
            trial.failures.append(Failure(error.path, error.failure))
        return
    trial.built = built
    trial.notes += built.notes
    if built.optim_failure is not None:
        trial.failures.append(Failure(('optim_wrapper',), built.optim_failure))
    elif built.optim_wrapper is None:
        trial.not_done.append('the config has no optim_wrapper')


def _run_steps(
    cfg: Config,
    settings: PreflightSettings,
    trial: _Trial,
    progress: Report,
) -> None:
    """Make batches and train on them."""
    built = trial.built
    try:
        batches = make_batches(
            built,
            settings.batches,
            steps=settings.steps,
            batch_size=settings.batch_size or fit_batch_size(built.model),
            notes=trial.notes,
        )
    except CannotBuildError as error:
        trial.not_done.append(f'no batches were made: {error}')
        return
    left = [kind for kind in settings.batches if kind not in batches]
    if left:
        trial.not_done.append(
            f'batches of kind {", ".join(left)} mean nothing to a task of '
            f'{built.task}'
        )
    if 'empty' in batches and built.recipe.drops_empty:
        trial.notes.append(
            'the data set leaves out pictures without objects, so that empty '
            'batches do not occur'
        )
    if _trains_in_its_own_way(built.model, cfg):
        trial.not_done.append(
            'no step was run: the model has a train_step of its own, which '
            'the model wrapper calls, and what it does is not predicted; '
            'train some steps in several processes'
        )
    elif batches:
        progress(f'training {settings.steps} steps of {", ".join(batches)}')
        trial.dry_run = dry_run_model(
            built.model,
            batches,
            optim_wrapper=built.optim_wrapper,
            cfg=built.cfg,
            steps=settings.steps,
            later_steps=1,
        )
        _keep_what_is_sure(trial)
        dry_run = trial.dry_run
        if dry_run and any(dry_run.usages()) and not dry_run.is_telling:
            trial.not_done.append(
                'unused parameters and settings of DDP were not judged: no '
                f'step with a batch of kind {next(iter(batches))!r} ran to '
                'its end, and the others are special cases'
            )


def _keep_what_is_sure(trial: _Trial) -> None:
    """Leave out errors of batches that only a signature was known of."""
    crashes = trial.dry_run.crashes
    if crashes and any(SIGNATURE in note for note in trial.notes):
        crash = crashes[0]
        trial.not_done.append(
            f'no step was run to its end: it ended with {crash.error}: '
            f'{crash.message} ({crash.place}), perhaps since the batches are '
            f'made up {SIGNATURE} only; run it where the data are'
        )
        trial.dry_run = None


def _trains_in_its_own_way(model: nn.Module, cfg: Config) -> bool:
    """Whether a training in several processes does not go by forward."""
    scope = cfg.get('default_scope') or 'mmengine'
    right = RightPlaces(cfg.to_dict(), scope, None)
    if right.kind is RunnerKind.FLEXIBLE:
        return False
    return has_own_train_step(model) and not bypassed_methods(
        model, right.wrapper_class
    )


def fit_batch_size(model: nn.Module) -> int:
    """Fewest samples of a batch that a model, put into training mode, needs.

    2 if a norm computes statistics of single channels, as it may meet a map
    of one pixel, else 1.
    """
    model.train()
    return 1 + any(
        (isinstance(module, _BatchNorm) and module.training)
        or (
            isinstance(module, nn.GroupNorm)
            and module.num_groups == module.num_channels
        )
        for module in model.modules()
    )


def _apply_rules(
    cfg: Config,
    settings: PreflightSettings,
    trial: _Trial,
    current: SyncSettings,
    progress: Report,
) -> list[Finding]:
    """Findings in the config, in the labels and in the dry run."""
    progress('reading the config')
    findings = lint_config(
        cfg,
        file=settings.config,
        model=None if trial.built is None else trial.built.model,
        environ=settings.environ,
        world=settings.world or None,
    )
    progress('building what the runner builds')
    with contained(findings, 'building parts', severity=Severity.ERROR):
        parts = build_parts(
            cfg,
            trial.built,
            read_data=settings.labels or 'real' in settings.batches,
        )
        trial.not_done += parts.not_done
        findings = build_findings(
            [*trial.failures, *parts.failures], cfg, settings.config, findings
        )
    if settings.labels:
        progress('looking at the labels')
        _check_labels(cfg, settings, trial, findings)
    if trial.dry_run is not None:
        with contained(findings, 'looking at the steps'):
            of_dry_run = proof_findings(
                trial.dry_run, current, trial.built.random_weights
            )
            if trial.built.random_weights:
                of_dry_run = map(_with_random_weights, of_dry_run)
            findings += of_dry_run
    return [*trial.findings, *findings]


def _check_labels(
    cfg: Config,
    settings: PreflightSettings,
    trial: _Trial,
    findings: list[Finding],
) -> None:
    """Add what the labels show; the data may be elsewhere."""
    known = {
        finding.key.partition('.')[0]
        for finding in findings
        if finding.rule == 'BUILD001'
    }
    with contained(findings, 'the check of the labels'):
        try:
            found = label_findings(
                cfg, splits=settings.splits, store=settings.store
            )
            findings += [
                finding
                for finding in without_known(found, findings)
                if finding.rule != 'READ001'
                or finding.key.partition('.')[0] not in known
            ]
        except (
            FileNotFoundError,
            NotADirectoryError,
            NothingToCheckError,
        ) as error:
            text = ' '.join(str(error).split())
            trial.not_done.append(f'labels were not checked: {text}')


def _with_random_weights(finding: Finding) -> Finding:
    """The finding as it counts with random weights: overflow says little."""
    if finding.rule not in _VALUE_RULES:
        return finding
    return msgspec.structs.replace(
        finding,
        severity=min(finding.severity, Severity.WARNING),
        message=f'{finding.message}; the weights are random here',
    )


def _run_processes(
    settings: PreflightSettings, trial: _Trial, progress: Report
) -> WorldResult | None:
    """What real processes do; None where none are asked for or can run."""
    if not settings.world or trial.dry_run is None:
        return None
    progress(f'running {settings.world} processes')
    crashed = {crash.kind for crash in trial.dry_run.crashes}
    kinds = tuple(
        kind
        for kind, steps in trial.dry_run.steps.items()
        if steps and kind not in crashed
    )
    if not kinds:
        trial.not_done.append(
            'no processes were started: no batch goes through'
        )
        return None
    return run_world_config(
        settings.config,
        settings.cfg_options,
        kinds=kinds,
        steps=settings.steps,
        world=settings.world,
        batch_size=settings.batch_size or 2,
    )


def _with_locations(
    findings: Sequence[Finding], settings: PreflightSettings
) -> list[Finding]:
    """Findings with file and line of their key, where there is a file."""
    if not Path(settings.config).is_file():
        return list(findings)
    located = []
    for finding in findings:
        if finding.key and not finding.file:
            file, line = key_place(settings.config, finding.key)
            location = Location(key=finding.key, file=file, line=line)
            finding = msgspec.structs.replace(finding, location=location)
        located.append(finding)
    return located


def run_preflight(
    settings: PreflightSettings, console: Console | None = None
) -> int:
    """Run a preflight, print it, and write what is asked for.

    Fails before anything is built if an output cannot be written. Where a
    report goes to standard output, all else goes to standard error.
    """
    settings = msgspec.structs.replace(
        settings, config=config_file(settings.config)
    )
    check_settings(settings)
    new = None
    if settings.fix is not None:
        new = fixed_path(settings.config, settings.fix)
        if new.exists():
            raise FileExistsError(
                f'--fix must name a new file, got {new}, which exists'
            )
        if new.suffix != '.py':
            raise ValueError(f'--fix must name a .py file, got {new}')
    with prepare_outputs(
        {
            '--json': settings.json,
            '--sarif': settings.sarif,
            '--html': settings.html,
        },
        regular={
            '--fix': new,
            '--store': settings.store if settings.labels else None,
        },
        inputs={'the config': settings.config},
    ):
        return _run(settings, console or terminal.make_console())


def _examine(settings: PreflightSettings) -> PreflightReport:
    """The report, with what is printed and warned of meanwhile in it."""
    with (
        _status() as progress,
        collected_warnings() as warned,
        _collected_prints() as printed,
    ):
        report = preflight(settings, progress=progress)
    # Made-up pictures have other sizes than those of the training.
    notes = [text for text, running in warned.items() if running]
    notes += [f'printed: {line}' for line in printed]
    return msgspec.structs.replace(
        report,
        notes=(*report.notes, *notes),
        warned=tuple(text for text in warned if not warned[text]),
    )


def _run(settings: PreflightSettings, console: Console) -> int:
    report = _examine(settings)
    # Whatever the terminal makes of it, the report is there.
    _write(settings, report)
    print_report(report, console, verbose=settings.verbose)
    if settings.fix is not None:
        report = _fix(settings, report, console)
    worst = report.worst()
    if worst is not None and worst >= Severity[settings.fail_on.upper()]:
        return 1
    return 0 if any(batch.steps for batch in report.batches) else 2


@contextmanager
def _collected_prints() -> Iterator[list[str]]:
    """Lines that are printed meanwhile, for the report; complete at the end.

    They go to standard error if there will be no report.
    """
    out, lines = StringIO(), []
    try:
        with redirect_stdout(out):
            yield lines
    except BaseException:
        sys.stderr.write(out.getvalue())
        raise
    lines += dict.fromkeys(out.getvalue().splitlines())


@contextmanager
def _status() -> Iterator[Report]:
    """A line on standard error with what is being done."""
    console = terminal.make_console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status('starting') as status:
        yield lambda text: status.update(f'{text} ...')


def _write(settings: PreflightSettings, report: PreflightReport) -> None:
    forms = [
        (settings.json, report_json),
        (settings.sarif, report_sarif),
        (settings.html, report_html),
    ]
    for file, form in forms:
        if file is not None:
            with atomic_path(file) as temporary:
                temporary.write_bytes(form(report))


def _fix(
    settings: PreflightSettings, report: PreflightReport, console: Console
) -> PreflightReport:
    """Write the fixed config; returns the report of what is to be used."""
    reports = [report]

    def look(path: Path) -> Sequence[Finding]:
        again = msgspec.structs.replace(settings, config=str(path))
        reports.append(_examine(again))
        return reports[-1].findings

    fixed = fix_config(settings.config, report.findings, settings.fix, look)
    if fixed is None:
        terminal.print_text(
            console,
            'no config was written: no finding has a change whose meaning '
            'is certain',
        )
        return report
    text = f'wrote {fixed.path}; the same preflight of it:'
    console.print()
    terminal.print_text(console, text, style='bold')
    print_report(reports[-1], console, verbose=settings.verbose)
    for text in fixed.refused:
        terminal.print_text(console, text)
    if fixed.left:
        terminal.print_text(
            console,
            f'after {fixed.rounds} rounds {", ".join(fixed.left)} would '
            'still have to change: options of the command line undo it, or '
            'the changes contradict each other',
        )
    return reports[-1]
