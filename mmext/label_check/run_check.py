"""What ``tools/validate_labels.py`` does, from its settings to the report."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..utils.files import atomic_path
from .backends import dask_backend, joblib_backend, ray_backend, serial
from .check import check_labels, work_items
from .class_weights import class_weights, format_class_weights
from .findings import Severity
from .fix import fix_labels
from .fix.out_tree import check_out
from .report import Report, report_json
from .report_sarif import report_sarif
from .report_table import print_report, print_rules
from .rules import describe_rules, select_rules
from .run_sources import sources_of
from .scan import parse_shard, scan, shard_of
from .settings import CheckSettings, check_settings
from .sources import SplitSource
from .store import FactStore, merge_stores
from .work import WorkItem

__all__ = ['list_rules', 'run_check']


def list_rules(console: Console | None = None) -> None:
    """Print all rules.

    Args:
        console: Where to; None for standard output.
    """
    print_rules(describe_rules(), console or Console())


def _weights(report: Report, kind: str) -> str:
    """Class weights of the first split, of pixels or else of objects."""
    split = report.splits[0]
    pixels = any(each.pixels for each in split.classes)
    counts = [
        (each.pixels, each.area) if pixels else (each.boxes, each.images)
        for each in split.classes
    ]
    if not any(count for count, _ in counts):
        return f'# {kind}: no weights, {split.split} has no labels'
    weights = class_weights(kind, *map(list, zip(*counts)))
    unit = 'pixels' if pixels else 'objects'
    return (
        f'# {kind}, from {unit} of {split.split}\n'
        f'{format_class_weights(weights)}'
    )


def _backend(settings: CheckSettings) -> Callable[..., Iterator[Any]]:
    """The function that reads batches, its options bound."""
    if settings.backend == 'dask':
        return partial(dask_backend.run, scheduler=settings.scheduler)
    if settings.backend == 'ray':
        address = settings.scheduler or 'auto'
        return partial(ray_backend.run, address=address)
    if settings.backend == 'serial' or settings.workers == 1:
        return serial.run
    return partial(joblib_backend.run, workers=settings.workers)


@contextmanager
def _progress(
    files: Callable[[], Iterable],
) -> Iterator[Callable[[int], Any] | None]:
    """A bar on standard error, which takes the number of files done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        # Counting goes through all samples.
        yield None
        return
    bar = Progress(
        TextColumn('reading files'),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task('', total=sum(1 for _ in files()))
        yield lambda done: bar.update(task, completed=done)


def _read_shard(
    settings: CheckSettings,
    sources: Sequence[SplitSource],
    store: FactStore,
    console: Console,
) -> int:
    """Read the files of one shard; judge nothing."""
    index, count = parse_shard(settings.shard)

    def files() -> Iterator[WorkItem]:
        return shard_of(work_items(sources), index, count)

    with _progress(files) as progress:
        counts = scan(
            files(),
            store,
            run=_backend(settings),
            progress=progress,
        )
    console.print(
        f'shard {settings.shard}: {counts.read:,} files read, '
        f'{counts.cached:,} known already, {counts.errors:,} with an error; '
        f'facts are in {store.path}'
    )
    return 0


def _write_reports(
    settings: CheckSettings, report: Report, pictures: Callable[[], Sequence]
) -> None:
    """Write each file that is asked for, complete or not at all."""
    forms = [(settings.json, report_json), (settings.sarif, report_sarif)]
    if settings.html is not None:
        # Jinja2 and Pillow are not needed for the others.
        from .report_html import report_html

        forms.append(
            (settings.html, lambda _: report_html(report, pictures()))
        )
    for file, form in forms:
        if file is not None:
            with atomic_path(str(file)) as temporary:
                Path(temporary).write_bytes(form(report))


def _finish(
    settings: CheckSettings,
    sources: Sequence[SplitSource],
    store: FactStore,
    console: Console,
) -> int:
    """Check, print, write and repair; gives the exit code."""
    rules = select_rules(settings.select, settings.ignore)
    with _progress(lambda: work_items(sources)) as progress:
        report = check_labels(
            sources,
            store,
            rules=rules,
            run=_backend(settings),
            progress=progress,
        )
    print_report(report, console)
    if settings.class_weights is not None:
        text = _weights(report, settings.class_weights)
        console.print(f'\n{text}', highlight=False)

    def pictures() -> Sequence:
        from .gallery import make_gallery

        return make_gallery(report, sources)

    _write_reports(settings, report, pictures)
    if settings.fix is not None:
        summary = fix_labels(sources, store, settings.fix, rules=rules)
        console.print(f'\n{summary.text()}', highlight=False)
    worst = report.worst()
    limit = Severity[settings.fail_on.upper()]
    return int(worst is not None and worst >= limit)


def run_check(settings: CheckSettings, console: Console | None = None) -> int:
    """Check, print, and write what is asked for.

    Args:
        settings: What, and how.
        console: For the report; None for standard output.

    Returns:
        0 without a finding at or above ``fail_on``, 1 with one; 0 after a
        shard, which is not judged.

    Raises:
        FileExistsError: If stores are to be merged into one that exists, or
            ``fix`` names what exists.
        FileNotFoundError: If the config or its data are not there.
        ValueError: If a setting is not as said.
    """
    check_settings(settings)
    console = console or Console()
    if settings.fix is not None:
        # Not after an hour of reading.
        check_out(settings.fix, ())
    sources = sources_of(settings)
    settings.store.parent.mkdir(parents=True, exist_ok=True)
    if settings.merge:
        merge_stores(settings.merge, settings.store)
    with FactStore(settings.store) as store:
        if settings.shard is not None:
            return _read_shard(settings, sources, store, console)
        return _finish(settings, sources, store, console)
