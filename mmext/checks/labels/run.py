"""The label check as a whole: sources, facts, findings, report, exit code."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from mmengine.config import Config
from rich.console import Console
from rich.progress import Progress

from ...utils.files import atomic_path, prepare_outputs
from ..findings import Finding, Severity, location_writer, terminal
from .check import check_sources
from .expectations import SplitSource
from .inputs import BARE, name_of, refuse_fix, sources_of
from .report import Report, print_report, report_json, report_sarif
from .rules.registry import select_rules
from .scan import work_items
from .store import FactStore
from .totals import CLASS_WEIGHT_KINDS, describe_class_weights
from .work import choose_backend

# Places that are named of a finding, without --all.
_EXAMPLES = 5

_Path = str | Path | None


class LabelCheck(NamedTuple):
    """What :func:`check_labels` gives back.

    Attributes:
        report: Findings in groups, with their counts, and what each split
            holds.
        exit_code: 1 with a finding at or above ``fail_on``, else 0.
    """

    report: Report
    exit_code: int


def check_labels(
    config: str | Path | Config | None = None,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: str = 'error',
    json: _Path = None,
    sarif: _Path = None,
    html: _Path = None,
    jsonl: _Path = None,
    csv: _Path = None,
    all: bool = False,
    verbose: bool = False,
    fix: _Path = None,
    class_weights: str | None = None,
    store: str | Path = 'work_dirs/label_check.sqlite',
    workers: int = 0,
    scheduler: str | None = None,
    console: Console | None = None,
    **data: Any,
) -> LabelCheck:
    """Check the labels of a data set; what ``tools/validate_labels.py`` does.

    Fails before any data are read if an output cannot be written. Where a
    report goes to standard output (``'-'``), all else goes to standard error.

    Args:
        config: Config of the training, or its file; None for ``data`` that
            need none.
        select: Rules to apply; empty for all.
        ignore: Rules not to apply.
        fail_on: Least severity that makes the exit code 1.
        json: File for the report; None for none.
        sarif: The same in SARIF.
        html: The same as a page to read.
        jsonl: File for all locations of all findings, one a line, as JSON.
        csv: The same as CSV.
        all: Name all locations in the other reports, too, but for the page.
        verbose: Print how much there is of each class.
        fix: Folder for repaired label files; None not to repair.
        class_weights: Kind of weights to print, of pixels or else of
            objects; None for none.
        store: File that keeps what was read, for the next check.
        workers: Processes that read files; 0 for one each CPU, 1 for this
            process alone.
        scheduler: Address of a Dask cluster that reads files in their place.
        console: Where to print; ``rich.console.Console(quiet=True)`` for
            nowhere.
        **data: ``split``, ``cfg_options``, and what to check without a
            config: see :func:`~mmext.checks.labels.inputs.sources_of`.

    Raises:
        ValueError: If settings are wrong or do not go together.
        OSError: If data are missing, or an output cannot be written.
    """
    if fail_on not in ('info', 'warning', 'error'):
        raise ValueError(
            f"--fail-on must be 'info', 'warning' or 'error', got {fail_on!r}"
        )
    run = choose_backend(workers, scheduler)
    rules = select_rules(select, ignore)
    if class_weights not in (None, *CLASS_WEIGHT_KINDS):
        raise ValueError(
            f'--class-weights must be one of {sorted(CLASS_WEIGHT_KINDS)}, '
            f'got {class_weights!r}'
        )
    given = (config and name_of(config), *map(data.get, BARE))
    subject = str(next((name for name in given if name is not None), ''))
    reports = {'json': json, 'sarif': sarif, 'html': html}
    locations = {'jsonl': jsonl, 'csv': csv}
    with prepare_outputs(
        {f'--{name}': file for name, file in (reports | locations).items()},
        regular={'--store': store},
        new_folders={'--fix': fix},
        inputs={
            '--config': config if isinstance(config, (str, Path)) else None,
            '--coco': data.get('coco'),
        },
    ):
        console = console or terminal.make_console()
        sources = sources_of(config, **data)
        if fix is not None:
            refuse_fix(fix, sources)
        Path(store).parent.mkdir(parents=True, exist_ok=True)
        with FactStore(store) as facts:
            with _progress(sources) as progress, _writers(locations) as tell:
                report = check_sources(
                    sources,
                    facts,
                    rules=rules,
                    run=run,
                    progress=progress,
                    num_examples=None if all else _EXAMPLES,
                    tell=tell,
                )
            located = _with_lines(report, subject if config else '')
            print_report(located, console, name=subject, verbose=verbose)
            if class_weights is not None:
                text = describe_class_weights(class_weights, report.splits[0])
                terminal.print_text(console, f'\n{text}')
            _write(json, lambda: report_json(report))
            _write(sarif, lambda: report_sarif(located, subject))
            _write(html, lambda: _page(report, sources))
            if fix is not None:
                # Not at the top: few runs write repaired files.
                from .fix.fix_labels import fix_labels

                summary = fix_labels(
                    sources, facts, Path(fix), rules=rules, asked=select
                )
                terminal.print_text(console, f'\n{summary.text()}')
    worst = report.worst()
    failed = worst is not None and worst >= Severity[fail_on.upper()]
    return LabelCheck(report, int(failed))


@contextmanager
def _progress(
    sources: Sequence[SplitSource],
) -> Iterator[Callable[[int], Any]]:
    """A bar on standard error, which takes the number of files done."""
    console = terminal.make_console(stderr=True)
    if not console.is_terminal:
        # Counting goes through all samples.
        yield lambda done: None
        return
    with Progress(console=console, transient=True) as bar:
        number = sum(1 for _ in work_items(sources))
        task = bar.add_task(f'reading {number:,} files', total=number)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def _writers(files: dict[str, _Path]) -> Iterator[Callable[[Finding], Any]]:
    """Writes each finding it is called with to the files asked for."""
    with ExitStack() as stack:
        writers = []
        for form, path in files.items():
            if path is not None:
                temporary = stack.enter_context(atomic_path(path))
                file = stack.enter_context(temporary.open('wb'))
                writers.append(location_writer(file, form))

        def tell(finding: Finding) -> None:
            for write in writers:
                write(finding)

        yield tell


def _write(path: _Path, content: Callable[[], bytes]) -> None:
    """Write a report that is asked for, complete or not at all."""
    if path is not None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(content())


def _page(report: Report, sources: Sequence[SplitSource]) -> bytes:
    # Jinja2 and Pillow are not needed for the other reports.
    from .gallery import make_gallery
    from .page import report_html

    # As many examples as a page has room for.
    few = _with_examples(report, lambda examples: examples[:_EXAMPLES])
    return report_html(few, make_gallery(few, sources))


def _with_lines(report: Report, config: str) -> Report:
    """A report whose findings about the config have its file and line."""
    if not config or not Path(config).is_file():
        return report
    # Not at the top: bare files do not need it.
    from ..config import key_location

    return _with_examples(
        report,
        lambda examples: tuple(
            finding.in_file(*key_location(config, finding.key))
            if finding.key and not finding.file
            else finding
            for finding in examples
        ),
    )


def _with_examples(
    report: Report, change: Callable[[tuple[Finding, ...]], tuple]
) -> Report:
    groups = tuple(
        msgspec.structs.replace(group, examples=change(group.examples))
        for group in report.groups
    )
    return msgspec.structs.replace(report, groups=groups)
