"""A preflight, from a config to the report and the exit code.

:func:`check_config` follows a config from left to right: it is read, its model
is built and run dry on batches, the rules look at the config, at the labels
and at the dry run, real processes confirm the outcome, and the findings get
their file and line. :func:`run_preflight` is the tool: it prints and writes
the report, and writes the fixed config. :func:`list_rules` prints the rules of
both tools.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import torch
from mmengine.config import Config
from rich.console import Console
from torch.nn.parameter import is_lazy

from ...utils.files import atomic_path, prepare_outputs
from ...utils.printing import printable
from ...utils.quiet_hosts import collected_warnings
from ...utils.safe_load import careful_readers
from ..config import config_file, read_config
from ..device import is_available
from ..findings import (
    Finding,
    Rule,
    Severity,
    rules_of,
    terminal,
)
from ..labels.sources import NothingToCheckError
from .batches import KINDS
from .dry_run.rehearsal import RehearsedStep, rehearse_config
from .dry_run.run import ConfigOptions, Verdicts
from .first_steps import FirstSteps, find_cause, run_first_steps
from .fix import fix_config, fixed_path
from .miniature import run_miniature
from .ranks import run_world
from .report import (
    PreflightReport,
    make_batch_reports,
    make_rehearsal_report,
    print_report,
    report_html,
    report_json,
    report_sarif,
    sort_findings,
)
from .rules.builds import build_findings
from .rules.labels import label_findings, without_known
from .rules.limits import object_findings
from .rules.registry import catch_errors, lint_config, with_locations
from .rules.steps import (
    dry_run_findings,
    rehearsal_findings,
    single_sample_findings,
    world_findings,
)
from .rules.subject import Subject
from .rules.sync import hook_findings
from .sandbox import CannotBuildError, quiet

_STORE = Path('work_dirs/label_check.sqlite')


def check_config(
    config: str | Path | Config,
    *,
    cfg_options: Mapping[str, Any] | None = None,
    batches: Sequence[str] = ('normal', 'empty', 'one-class', 'crowded'),
    steps: int = 2,
    batch_size: int = 0,
    image_size: tuple[int, int] | None = None,
    device: str = 'cpu',
    world: int = 0,
    rehearse: bool = False,
    gpu_memory: float | None = None,
    miniature: float = 60.0,
    labels: bool = True,
    splits: Sequence[str] = ('train', 'val'),
    store: Path = _STORE,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[str], Any] = lambda text: None,
) -> PreflightReport:
    """Look at a config, build its model and train it for a few steps.

    Only ``store`` is written.

    Args:
        config: A file, one that a package ships (``'mmext::...'``), or a
            config.
        cfg_options: Settings to put over it, keys with dots.
        batches: Kinds of batches: ``'normal'``, ``'empty'``,
            ``'one-class'``, ``'crowded'``, ``'full'``, or ``'real'`` for those
            of the config's data.
        steps: Of the first kind, at least 2: the second shows what the
            first one has left behind. The other kinds get one.
        batch_size: Samples of a batch; 0 for 2 where a model computes
            statistics of batches, which one sample may not suffice for, and
            else 1.
        image_size: Height and width of made-up pictures in pixels; None for
            what suits the model.
        device: Where the model runs.
        world: Processes to confirm the verdict with, at least 2; 0 for none.
        rehearse: Take a step on a device that stands in for a GPU, see
            :func:`mmext.checks.rehearse`, with ``batch_size`` or that of the
            config, and ``image_size`` or that of the config's pictures.
        gpu_memory: Memory of the GPU in GiB. A step is rehearsed then, and
            has to fit; where it does not, the finding says what does.
        miniature: Seconds in which the runner of the config trains two
            iterations, saves, validates, loads and tests; what would take
            longer is left out, and said. 0 to build its parts only.
        labels: Check the labels of the data, too, if they are there.
        splits: Those whose labels are checked.
        store: File that keeps what was read of them, see
            :func:`~mmext.checks.labels.check_labels`.
        environ: Variables that the training is going to see; None for those
            of this process.
        progress: Called with what is being done.

    Returns:
        The report. What could not be done is in ``not_done``.

    Raises:
        FileNotFoundError: If there is no such config.
        ValueError: If an argument is out of range.

    Examples:
        >>> import mmext
        >>> path = mmext.config_path('pidnet/pidnet_small_shapes.py')
        >>> check_config(path, batches=['normal'], labels=False).task
        'semantic'
    """
    unknown = [kind for kind in batches if kind not in KINDS]
    wrong = {
        f'batches must be some of {KINDS}, got {unknown or batches!r}': (
            isinstance(batches, str) or not batches or bool(unknown)
        ),
        'steps must be at least 2, as the second step shows what the first '
        f'has left behind, got {steps}': steps < 2,
        'batch_size must be at least 1, or 0 for what suits the model, got '
        f'{batch_size}': batch_size < 0,
        f'world must be 2 or more processes, or 0 for none, got {world}': (
            world < 0 or world == 1
        ),
        f'image_size must be two positive numbers, got {image_size}': (
            image_size is not None and min(image_size) < 1
        ),
        f'gpu_memory must be more than 0 GiB, got {gpu_memory}': (
            gpu_memory is not None and gpu_memory <= 0
        ),
        f'miniature must be 0 seconds or more, got {miniature}': (
            not miniature >= 0
        ),
    }
    for text, holds in wrong.items():
        if holds:
            raise ValueError(text)
    try:
        torch.empty(0, device=device)
    # A PyTorch without CUDA says so by an assertion.
    except (AssertionError, RuntimeError) as error:
        raise ValueError(
            'device must be one that PyTorch can use here, got '
            f'{device!r}: {error}'
        ) from error
    name, cfg = _read(config, cfg_options, world)
    current = ConfigOptions(cfg).current
    verdicts = confirmed = rehearsed = None
    with quiet(), careful_readers(cfg.get('trust_checkpoint') is True):
        first = run_first_steps(
            cfg,
            kinds=batches,
            steps=steps,
            batch_size=batch_size,
            image_size=image_size,
            device=device,
            progress=progress,
        )
        built, dry_run = first.built, first.dry_run
        progress('reading the config')
        findings = lint_config(
            cfg,
            file=name,
            model=None if built is None else built.model,
            environ=environ,
            world=world or None,
        )
        parameters = () if built is None else built.model.parameters()
        trained = [p for p in parameters if p.requires_grad]
        fails = dry_run is not None and dry_run.fails
        samples = 0
        progress('training in small')
        with catch_errors(
            findings, 'the training in small', severity=Severity.ERROR
        ):
            small = run_miniature(
                cfg,
                built,
                read_data=labels or 'real' in batches,
                # Why it cannot be trained is said already.
                limit=0.0 if fails else miniature,
            )
            first.not_done += small.not_done
            first.notes += small.notes
            samples = small.samples
            first.failures += small.failures
            subject = Subject(
                cfg, file=name, environ=environ, world=world or None
            )
            findings += object_findings(subject, small.objects)
            findings += hook_findings(subject, small.trainable, current)
        if labels:
            progress('looking at the labels')
            with catch_errors(findings, 'the check of the labels'):
                findings += _label_findings(
                    cfg, splits, store, findings, first
                )
        failures = [
            failure._replace(trial=find_cause(failure, cfg, device))
            for failure in first.failures
        ]
        findings = build_findings(failures, cfg, findings)
        if dry_run is not None:
            with catch_errors(findings, 'looking at the steps'):
                findings += dry_run_findings(dry_run, current)
            if dry_run.is_telling:
                with catch_errors(findings, 'a step with one sample'):
                    findings += single_sample_findings(
                        Subject(
                            cfg,
                            file=name,
                            environ=environ,
                            world=world or None,
                        ),
                        built,
                        samples,
                    )
                with catch_errors(
                    findings, 'predicting what the wrapper does'
                ):
                    explained = dry_run.judged.explain(current)
                    verdicts = Verdicts(explained.verdicts, explained.reason)
        if dry_run is not None and world and not dry_run.clean_kinds:
            first.not_done.append(
                'no processes were started: no batch goes through'
            )
        elif dry_run is not None and world:
            progress(f'running {world} processes')
            with catch_errors(
                findings, 'running processes', severity=Severity.ERROR
            ):
                confirmed = run_world(
                    name,
                    cfg_options,
                    kinds=dry_run.clean_kinds,
                    steps=steps,
                    world=world,
                    batch_size=batch_size or 2,
                )
        if rehearse or gpu_memory:
            with catch_errors(findings, 'rehearsing a step'):
                rehearsed = _rehearsed(
                    first,
                    cfg,
                    image_size=image_size,
                    batch_size=batch_size,
                    world=world,
                    gpu_memory=gpu_memory,
                    progress=progress,
                )
        if rehearsed is not None:
            known = {finding.rule for finding in findings}
            findings += [
                finding
                for finding in rehearsal_findings(rehearsed)
                # Without mixed precision, too.
                if finding.rule != 'GPU004' or 'STEP003' not in known
            ]
        rows = () if verdicts is None else verdicts.rows
        works = any(row.works for row in rows if row.current)
        findings += [*first.findings, *world_findings(confirmed, works)]
        findings = with_locations(findings, name)
    return PreflightReport(
        config=name,
        task='' if built is None else built.task,
        trainable=len(trained),
        values=sum(p.numel() for p in trained if not is_lazy(p)),
        settings=current,
        batches=() if dry_run is None else make_batch_reports(dry_run),
        verdicts=verdicts,
        world=confirmed,
        rehearsal=make_rehearsal_report(rehearsed),
        notes=tuple(first.notes),
        not_done=tuple(first.not_done),
        findings=sort_findings(findings),
    )


def check_training(
    cfg: Config, *, world: int = 1, console: Console | None = None
) -> bool:
    """Print the errors that a config shows before anything is built.

    For a training that is about to begin, in a second. What only a test
    reads is passed by, and so are the environment, which the launcher
    checks, and ``load_from`` where the work dir has what is resumed.

    Args:
        cfg: The config; it is not changed.
        world: Processes that train.
        console: Where to print; by default standard error.

    Returns:
        Whether there is no error.
    """
    cfg, listed = cfg.copy(), []
    if cfg.get('resume'):
        cfg.load_from = None
    careful = careful_readers(cfg.get('trust_checkpoint') is True)
    # What cannot be looked at stops no training.
    with careful, catch_errors(listed, 'the preflight'):
        listed += lint_config(cfg, environ={}, world=world)
    errors = [
        finding
        for finding in listed
        if finding.severity is Severity.ERROR
        and not finding.key.startswith(('test_', 'tta_'))
    ]
    if errors:
        report = PreflightReport(
            config=str(cfg.filename or 'the config'),
            findings=sort_findings(errors),
        )
        console = console or terminal.make_console(stderr=True)
        print_report(report, console)
    return not errors


def _read(
    config: str | Path | Config,
    cfg_options: Mapping[str, Any] | None,
    world: int,
) -> tuple[str, Config]:
    """The name of a config in the report, and the config with its options."""
    options = dict(cfg_options or {})
    if isinstance(config, Config):
        if world:
            raise ValueError(
                'config must be a file for world, as each process reads it, '
                'got a config'
            )
        cfg = config
        if options:
            cfg = Config(config.to_dict())
            cfg.merge_from_dict(options)
        return str(config.filename or 'config'), cfg
    name = config_file(str(config))
    if not Path(name).is_file():
        raise FileNotFoundError(f'config must be an existing file, got {name}')
    with quiet():
        return name, read_config(name, cfg_options=options or None)


def _rehearsed(
    first: FirstSteps, cfg: Config, **options: Any
) -> RehearsedStep | None:
    """A step on a GPU, if one on the CPU went through."""
    reason = ''
    if not is_available():
        reason = f'it needs PyTorch 2.13, and this is {torch.__version__}'
    elif first.dry_run is None or not first.dry_run.is_telling:
        reason = 'no step went through on the CPU'
    if not reason:
        try:
            return rehearse_config(cfg, **options)
        except CannotBuildError as error:
            reason = str(error)
    first.not_done.append(f'no step was rehearsed: {reason}')
    return None


def _label_findings(
    cfg: Config,
    splits: Sequence[str],
    store: Path,
    known: Sequence[Finding],
    first: FirstSteps,
) -> list[Finding]:
    """What the labels show beside what is known; the data may be elsewhere."""
    try:
        findings = label_findings(cfg, splits=splits, store=store)
    except (
        FileNotFoundError,
        NotADirectoryError,
        NothingToCheckError,
    ) as error:
        text = ' '.join(str(error).split())
        first.not_done.append(f'labels were not checked: {text}')
        return []
    not_built = {failure.path[:1] for failure in first.failures}
    return [
        finding
        for finding in without_known(findings, known)
        if finding.rule != 'READ001'
        or (finding.key.partition('.')[0],) not in not_built
    ]


def run_preflight(
    config: str,
    *,
    fail_on: str = 'error',
    json: Path | None = None,
    sarif: Path | None = None,
    html: Path | None = None,
    verbose: bool = False,
    fix: Path | None = None,
    console: Console | None = None,
    **options: Any,
) -> int:
    """Check a config, print the report, and write what is asked for.

    Fails before anything is built if an output cannot be written. Where a
    report goes to standard output, all else goes to standard error.

    Args:
        config: As of :func:`check_config`, but no :class:`Config`.
        fail_on: Least severity that makes the exit code 1.
        json: File for the report; None for none.
        sarif: The same in SARIF.
        html: The same as a page to read.
        verbose: Print what was run, and all names, too.
        fix: File for a config that inherits this one and has its findings
            fixed; None for none, ``Path('')`` for a name of its own beside
            the config.
        console: Where to print; by default standard output.
        **options: Of :func:`check_config`.

    Returns:
        The exit code: 0, 1 for a finding of ``fail_on`` or worse, 2 if no
        step was run.
    """
    config = config_file(config)
    console = console or terminal.make_console()
    new = None if fix is None else fixed_path(config, fix)
    if new is not None and new.exists():
        raise FileExistsError(
            f'--fix must name a new file, got {new}, which exists'
        )
    if new is not None and new.suffix != '.py':
        raise ValueError(f'--fix must name a .py file, got {new}')
    store = options.get('store', _STORE)

    def examine(path: str) -> PreflightReport:
        """The report, with what is printed and warned of meanwhile in it."""
        with (
            _status() as progress,
            collected_warnings() as warned,
            _collected_prints() as printed,
        ):
            report = check_config(path, progress=progress, **options)
        # Made-up pictures have other sizes than those of the training.
        notes = [text for text, running in warned.items() if running]
        notes += [f'printed: {line}' for line in printed]
        return msgspec.structs.replace(
            report,
            notes=(*report.notes, *notes),
            warned=tuple(text for text in warned if not warned[text]),
        )

    with prepare_outputs(
        {'--json': json, '--sarif': sarif, '--html': html},
        regular={
            '--fix': new,
            '--store': store if options.get('labels', True) else None,
        },
        inputs={'the config': config},
    ):
        report = examine(config)
        # Whatever the terminal makes of it, the report is there.
        for file, form in (
            (json, report_json),
            (sarif, report_sarif),
            (html, report_html),
        ):
            if file is not None:
                with atomic_path(file) as temporary:
                    temporary.write_bytes(form(report))
        print_report(report, console, verbose=verbose)
        if fix is not None:
            report = _fix(report, fix, examine, console, verbose)
    worst = report.worst()
    if worst is not None and worst >= Severity[fail_on.upper()]:
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
        sys.stderr.write(printable(out.getvalue()))
        raise
    lines += dict.fromkeys(out.getvalue().splitlines())


@contextmanager
def _status() -> Iterator[Callable[[str], Any]]:
    """A line on standard error with what is being done."""
    console = terminal.make_console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status('starting') as status:
        yield lambda text: status.update(f'{text} ...')


def _fix(
    report: PreflightReport,
    wanted: Path,
    examine: Callable[[str], PreflightReport],
    console: Console,
    verbose: bool,
) -> PreflightReport:
    """Write the fixed config; returns the report of what is to be used."""
    reports = [report]

    def look(path: Path) -> Sequence[Finding]:
        reports.append(examine(str(path)))
        return reports[-1].findings

    fixed = fix_config(report.config, report.findings, wanted, look)
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
    print_report(reports[-1], console, verbose=verbose)
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


_REFERENCE = """# Rules

What the two tools look for, with the ids that stand in their reports. Ids are
stable. A finding may be milder than its rule, and may have a better remedy
that knows the data set; `--fix` does what *fix* says where the facts allow
it. This page is made by `python tools/preflight.py --list-rules markdown`.

Rules look at:

- *sample*: a sample: image, label map or boxes
- *coco*: an annotation file in COCO's format
- *orphan*: a file that no sample has
- *split*: a split as a whole
- *run*: all splits, and the config
- *config*: the config
- *part*: a part of what is built or checked
- *step*: training steps of the dry run
- *ranks*: several processes
"""
_FAMILY_TABLE = """
### {letters}: {title}

| rule | severity | looks at | what is wrong | remedy | fix |
|---|---|---|---|---|---|
"""
_TOOLS = {
    'label_check': 'tools/validate_labels.py',
    'preflight': 'tools/preflight.py',
}


_CLINIC = """\
# Clinic: from what a training printed to what is wrong

Search this page for the words of your error. Each row has the rule that finds
the cause before the training begins; `python tools/preflight.py CONFIG` (or
`tools/validate_labels.py`, for labels) names the key, the file and the line.
An error on a GPU often comes late, and names nothing: run the preflight, which
runs on a CPU. `No module named 'mmcv._ext'` is of a Python in which mmext is
not installed, or of a checkout that is only on the path. `= -1.000` in a row
of COCO's metrics for one area (`area= small`) is right where the split has no
object of that area, and `= 0.000` is usual in the first epochs of a training
without pretrained weights. This page is made by
`tools/preflight.py --list-rules clinic`.

| what is printed | what it comes of | rule | what helps |
|---|---|---|---|
"""


def list_rules(form: str = 'table', console: Console | None = None) -> None:
    """Print the rules of both checkers, as a table or as markdown.

    ``'clinic'`` is a table of what trainings print, with the rules that find
    why before they begin.
    """
    if form == 'clinic':
        print(_CLINIC, end='')
        rows = [
            (symptom, rule)
            for tool in _TOOLS
            for rule in rules_of(tool).values()
            for symptom in rule.symptoms
        ]
        for symptom, rule in sorted(rows, key=lambda row: row[0].casefold()):
            heading = f'{rule.family.letters}: {rule.family.title}'.lower()
            anchor = re.sub(r'[^\w -]', '', heading).replace(' ', '-')
            link = f'[{rule.id}](rules.md#{anchor})'
            row = _row([rule.title, link, rule.remedy])
            print(f'| `{symptom.replace("`", "")}` {row}')
        return
    if form != 'markdown':
        rules = (
            rule
            for tool in reversed(_TOOLS)
            for rule in rules_of(tool).values()
        )
        terminal.print_rules(rules, console or terminal.make_console())
        return
    print(_REFERENCE, end='')
    for tool, command in _TOOLS.items():
        print(f'\n## {command}')
        families: dict[str, list[Rule]] = {}
        for rule in rules_of(tool).values():
            families.setdefault(rule.family.letters, []).append(rule)
        for letters, rules in families.items():
            title = rules[0].family.title
            print(_FAMILY_TABLE.format(letters=letters, title=title), end='')
            for rule in rules:
                severity = rule.severity.name.lower()
                cells = [rule.id, severity, rule.scope, rule.title]
                print(_row([*cells, rule.remedy, rule.fix]))


def _row(cells: Sequence[str]) -> str:
    """A row of a table in markdown."""
    text = ' | '.join(cell.replace('|', r'\|') for cell in cells)
    return f'| {text} |'.replace('<', r'\<').replace('*', r'\*')
