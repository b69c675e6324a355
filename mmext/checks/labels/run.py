"""What ``tools/validate_labels.py`` does, from its settings to the report."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ...datasets import is_layout
from ...utils.files import atomic_path, prepare_outputs
from ...utils.quiet_hosts import defer_imports
from ..findings import Finding, Location, Severity, place_writer, terminal
from .backends import run_dask, run_joblib, run_serial
from .check import check_labels
from .class_weights import class_weights, format_class_weights
from .expectations import Expectations
from .readers.panoptic import holds_key
from .report import Report, print_report, report_json, report_sarif
from .rules import RULES
from .rules.registry import select_rules
from .scan import work_items
from .settings import CheckSettings, check_settings
from .sources.coco import split_of_coco
from .sources.folder import split_of_folders
from .sources.nyuv2 import splits_of_layout
from .sources.panoptic import split_of_panoptic
from .sources.split_source import SplitSource
from .sources.voc import splits_of_voc
from .sources.yolo import splits_of_yolo
from .store import FactStore

# Places that are named of a finding, without --all.
_EXAMPLES = 5
_BARE = ('masks', 'coco', 'voc', 'yolo', 'nyuv2')


def sources_of(settings: CheckSettings) -> list[SplitSource]:
    """A source for each split that is to be checked."""
    if settings.config is not None and is_layout(settings.config):
        settings = msgspec.structs.replace(
            settings, config=None, nyuv2=Path(settings.config)
        )
    given = [
        f'--{name} {getattr(settings, name)}'
        for name in _BARE
        if getattr(settings, name) is not None
        and not (name == 'masks' and settings.coco is not None)
    ]
    if settings.config is not None:
        given.insert(0, f'the config {settings.config}')
    if len(given) != 1:
        raise ValueError(
            'give a config, or --masks, --coco, --voc, --yolo or --nyuv2 with '
            'data to check without one; got '
            f'{" and ".join(given) or "none of them"}'
        )
    sources = [
        replace(source, verify=settings.verify)
        for source in _sources(settings)
    ]
    if settings.fix is not None and any(
        source.expected.loader_backend == 'npy' for source in sources
    ):
        raise ValueError(
            f'--fix {settings.fix} does not repair npy files; make them anew '
            'as the remedies of the findings say'
        )
    if settings.fix is not None and any(
        sample.annotation_kind == 'yolo'
        for source in sources
        for sample in itertools.islice(source.samples(), 1)
    ):
        raise ValueError(
            f'--fix {settings.fix} does not repair label files of YOLO; '
            'correct them as the remedies of the findings say'
        )
    if settings.fix is not None and any(
        source.expected.task == 'panoptic' for source in sources
    ):
        raise ValueError(
            f'--fix {settings.fix} does not repair panoptic annotations; '
            'correct them as the remedies of the findings say'
        )
    return sources


def _sources(settings: CheckSettings) -> list[SplitSource]:
    if settings.config is not None:
        return _of_config(settings)
    _check_folder(settings.images)
    if settings.coco is not None:
        return [_of_coco(settings)]
    if settings.voc is not None:
        return splits_of_voc(
            settings.voc,
            settings.split,
            images=settings.images,
            classes=settings.classes,
        )
    if settings.yolo is not None:
        return splits_of_yolo(
            settings.yolo, settings.split, classes=settings.classes
        )
    if settings.nyuv2 is not None:
        return splits_of_layout(
            settings.nyuv2, settings.split, classes=settings.classes
        )
    return [_of_masks(settings)]


def _check_folder(images: Path | None) -> None:
    if images is not None and not images.is_dir():
        raise NotADirectoryError(
            f'--images must be an existing folder, got {str(images)!r}'
        )


def _of_config(settings: CheckSettings) -> list[SplitSource]:
    # Not at the top: this loads the hosts, which bare files do not need.
    # What draws and what knows distributions takes a tenth of the run.
    defer_imports('matplotlib.pyplot', 'scipy.stats')
    from ...utils.safe_load import careful_readers
    from ..config import check_data_paths, read_config
    from .sources.config import splits_of_config

    cfg = read_config(
        settings.config, cfg_options=settings.cfg_options, own_imports=False
    )
    check_data_paths(cfg, settings.split)
    with careful_readers(cfg.get('trust_checkpoint') is True):
        return splits_of_config(cfg, settings.split)


def _of_coco(settings: CheckSettings) -> SplitSource:
    if not settings.coco.is_file():
        raise FileNotFoundError(
            f'--coco must be an annotation file, got {str(settings.coco)!r}'
        )
    expected = Expectations(task='detection', classes=tuple(settings.classes))
    path, images = str(settings.coco), str(settings.images or '')
    with settings.coco.open('rb') as file:
        panoptic = holds_key(file)
    if panoptic:
        return split_of_panoptic(
            path,
            images,
            str(settings.masks or settings.coco.with_suffix('')),
            expected,
            names_of_file=True,
        )
    if settings.masks is not None:
        raise ValueError(
            f'--masks beside --coco is for panoptic annotations, which '
            f'{path!r} is not; check them one after the other'
        )
    return split_of_coco(path, images, expected, find_orphans=True)


def _of_masks(settings: CheckSettings) -> SplitSource:
    classes = tuple(settings.classes)
    number = settings.num_classes or len(classes)
    if number < 1:
        raise ValueError(
            '--masks needs --num-classes, a number of at least 1, or '
            f'--classes, got {settings.num_classes}'
        )
    if classes and len(classes) != number:
        raise ValueError(
            f'--classes must have as many names as --num-classes says, got '
            f'{len(classes)} and {number}'
        )
    return split_of_folders(
        settings.masks,
        settings.images,
        Expectations(
            num_classes=number,
            classes=classes,
            ignore_index=settings.ignore_index,
            reduce_zero_label=settings.reduce_zero_label,
            # Without a config, a loader that fits is taken for granted.
            casts_to_bytes=max(number, settings.ignore_index) <= 255,
            with_images=settings.images is not None,
        ),
        mask_suffix=settings.mask_suffix,
        image_suffix=settings.image_suffix,
    )


def list_rules(console: Console | None = None) -> None:
    """Print all rules, by default to standard output."""
    terminal.print_rules(RULES.values(), console or terminal.make_console())


def _weights(report: Report, kind: str) -> str:
    """Class weights of the first split, of pixels or else of objects."""
    split = report.splits[0]
    pixels = any(row.pixels for row in split.classes)
    counts = [
        (row.pixels, row.area) if pixels else (row.boxes, row.images)
        for row in split.classes
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
        return partial(run_dask, scheduler=settings.scheduler)
    if settings.backend == 'serial' or settings.workers == 1:
        return run_serial
    return partial(run_joblib, workers=settings.workers)


@contextmanager
def _progress(
    files: Callable[[], Iterable],
) -> Iterator[Callable[[int], Any] | None]:
    """A bar on standard error, which takes the number of files done."""
    console = terminal.make_console(stderr=True)
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


def _write_reports(
    settings: CheckSettings, report: Report, pictures: Callable[[], Sequence]
) -> None:
    """Write each file that is asked for, complete or not at all."""

    def sarif(report: Report) -> bytes:
        located = _with_lines(report, settings.config)
        return report_sarif(located, _subject(settings))

    forms = [(settings.json, report_json), (settings.sarif, sarif)]
    if settings.html is not None:
        # Jinja2 and Pillow are not needed for the others.
        from .page import report_html

        forms.append(
            (settings.html, lambda all_: report_html(_few(all_), pictures()))
        )
    for file, form in forms:
        if file is not None:
            with atomic_path(file) as temporary:
                temporary.write_bytes(form(report))


def _few(report: Report) -> Report:
    """A report with as many examples as a page has room for."""
    groups = tuple(
        msgspec.structs.replace(group, examples=group.examples[:_EXAMPLES])
        for group in report.groups
    )
    return msgspec.structs.replace(report, groups=groups)


def _subject(settings: CheckSettings) -> str:
    """What is checked, as the user gave it."""
    names = ('config', *_BARE)
    given = (getattr(settings, name) for name in names)
    return str(next(each for each in given if each is not None))


def _with_lines(report: Report, config: str | None) -> Report:
    """A report whose findings about the config have its file and line."""
    if config is None or not Path(config).is_file():
        return report
    # Not at the top: bare files do not need it.
    from ..config import key_place

    def located(finding: Finding) -> Finding:
        key = finding.key
        if finding.file or not key:
            return finding
        file, line = key_place(config, key)
        location = Location(key=key, file=file, line=line)
        return msgspec.structs.replace(finding, location=location)

    groups = tuple(
        msgspec.structs.replace(
            group, examples=tuple(map(located, group.examples))
        )
        for group in report.groups
    )
    return msgspec.structs.replace(report, groups=groups)


@contextmanager
def _place_writers(
    settings: CheckSettings,
) -> Iterator[Callable[[Finding], Any]]:
    """Writes each finding it is called with to the files asked for."""
    with ExitStack() as stack:
        writers = []
        for form in ('jsonl', 'csv'):
            path = getattr(settings, form)
            if path is not None:
                temporary = stack.enter_context(atomic_path(path))
                file = stack.enter_context(temporary.open('wb'))
                writers.append(place_writer(file, form))

        def tell(finding: Finding) -> None:
            for write in writers:
                write(finding)

        yield tell


def _finish(
    settings: CheckSettings,
    sources: Sequence[SplitSource],
    store: FactStore,
    console: Console,
) -> int:
    """Check, print, write and repair; gives the exit code."""
    rules = select_rules(settings.select, settings.ignore)
    with (
        _progress(lambda: work_items(sources)) as progress,
        _place_writers(settings) as tell,
    ):
        report = check_labels(
            sources,
            store,
            rules=rules,
            run=_backend(settings),
            progress=progress,
            num_examples=None if settings.all else _EXAMPLES,
            tell=tell,
        )
    print_report(
        _with_lines(report, settings.config),
        console,
        name=_subject(settings),
        verbose=settings.verbose,
    )
    if settings.class_weights is not None:
        text = _weights(report, settings.class_weights)
        terminal.print_text(console, f'\n{text}')

    def pictures() -> Sequence:
        from .gallery import make_gallery

        return make_gallery(_few(report), sources)

    _write_reports(settings, report, pictures)
    if settings.fix is not None:
        # Not at the top, here and below: few runs write repaired files.
        from .fix.fix_labels import fix_labels

        summary = fix_labels(
            sources, store, settings.fix, rules=rules, asked=settings.select
        )
        terminal.print_text(console, f'\n{summary.text()}')
    worst = report.worst()
    limit = Severity[settings.fail_on.upper()]
    return int(worst is not None and worst >= limit)


def run_check(settings: CheckSettings, console: Console | None = None) -> int:
    """Check, print, and write what is asked for.

    Fails before any data are read if an output cannot be written. Where a
    report goes to standard output, all else goes to standard error.
    """
    check_settings(settings)
    if settings.fix is not None:
        from .fix.out_tree import check_out

        check_out(settings.fix, ())
    with prepare_outputs(
        _options(settings, 'json', 'sarif', 'html', 'jsonl', 'csv'),
        regular=_options(settings, 'store'),
        new_folders=_options(settings, 'fix'),
        inputs=_options(settings, 'config', 'coco'),
    ):
        return _run(settings, console or terminal.make_console())


def _options(settings: CheckSettings, *names: str) -> dict[str, Any]:
    """Settings as the user gave them."""
    return {f'--{name}': getattr(settings, name) for name in names}


def _run(settings: CheckSettings, console: Console) -> int:
    sources = sources_of(settings)
    settings.store.parent.mkdir(parents=True, exist_ok=True)
    with FactStore(settings.store) as store:
        return _finish(settings, sources, store, console)
