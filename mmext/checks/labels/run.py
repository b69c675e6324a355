"""The label check as a whole: inputs, facts, findings, reports, exit code."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from mmengine.config import Config
from rich.console import Console
from rich.progress import Progress

from ...datasets import is_layout
from ...utils.files import atomic_path, open_regular, prepare_outputs
from ...utils.quiet_hosts import defer_hosts, defer_imports
from ..findings import (
    Finding,
    Severity,
    location_writer,
    select_rules,
    terminal,
)
from .check import check_sources, work_items
from .expectations import Expectations, SplitSource
from .readers.coco import holds_key
from .report import Report, print_report, report_json, report_sarif
from .rules import RULES
from .sources.coco import split_of_coco, split_of_panoptic
from .sources.folders import (
    split_of_folders,
    splits_of_layout,
    splits_of_voc,
    splits_of_yolo,
)
from .store import FactStore, choose_backend, is_on_disk
from .totals import CLASS_WEIGHT_KINDS, describe_class_weights

# What may take the place of a config.
BARE = ('masks', 'coco', 'voc', 'yolo', 'nyuv2')


def sources_of(
    config: str | Path | Config | None = None,
    *,
    split: Sequence[str] = ('train', 'val'),
    cfg_options: Mapping[str, Any] | None = None,
    masks: str | Path | None = None,
    coco: str | Path | None = None,
    voc: str | Path | None = None,
    yolo: str | Path | None = None,
    nyuv2: str | Path | None = None,
    images: str | Path | None = None,
    mask_suffix: str = '',
    image_suffix: str = '',
    num_classes: int | None = None,
    classes: Sequence[str] = (),
    ignore_index: int = 255,
    reduce_zero_label: bool = False,
) -> list[SplitSource]:
    """A source for each split that is to be checked.

    Arguments are the options of ``tools/validate_labels.py`` of these names,
    as its help explains them; a folder for ``config`` is taken for ``nyuv2``.
    """
    bare = dict(zip(BARE, (masks, coco, voc, yolo, nyuv2)))
    given = [
        f'--{name} {path}'
        for name, path in bare.items()
        if path is not None and not (name == 'masks' and coco is not None)
    ]
    if config is not None:
        given.insert(0, f'the config {name_of(config)}')
    if len(given) != 1:
        raise ValueError(
            'give a config, or --masks, --coco, --voc, --yolo or --nyuv2 with '
            'data to check without one; got '
            f'{" and ".join(given) or "none of them"}'
        )
    if images is not None and not Path(images).is_dir():
        raise NotADirectoryError(
            f'--images must be an existing folder, got {str(images)!r}'
        )
    if isinstance(config, (str, Path)) and is_layout(config):
        config, nyuv2 = None, config
    if config is not None:
        # Not at the top: this loads the hosts, which bare files do not need.
        defer_imports()
        defer_hosts()
        from ...utils.safe_load import careful_readers
        from ..config import check_data_paths, read_config
        from .sources.config import splits_of_config

        cfg = read_config(config, cfg_options=cfg_options, own_imports=False)
        check_data_paths(cfg, split)
        with careful_readers(cfg.get('trust_checkpoint') is True):
            sources = splits_of_config(cfg, split)
    elif coco is not None:
        sources = [_of_coco(Path(coco), images, masks, classes)]
    elif voc is not None:
        sources = splits_of_voc(voc, split, images=images, classes=classes)
    elif yolo is not None:
        sources = splits_of_yolo(yolo, split, classes=classes)
    elif nyuv2 is not None:
        sources = splits_of_layout(nyuv2, split, classes=classes)
    else:
        number = num_classes or len(classes)
        if number < 1:
            raise ValueError(
                '--masks needs --num-classes, a number of at least 1, or '
                f'--classes, got {num_classes}'
            )
        if classes and len(classes) != number:
            raise ValueError(
                '--classes must have as many names as --num-classes says, '
                f'got {len(classes)} and {number}'
            )
        expected = Expectations(
            num_classes=number,
            classes=tuple(classes),
            ignore_index=ignore_index,
            reduce_zero_label=reduce_zero_label,
            # Without a config, a loader that fits is taken for granted.
            casts_to_bytes=max(number, ignore_index) <= 255,
            with_images=images is not None,
        )
        suffixes = {'mask_suffix': mask_suffix, 'image_suffix': image_suffix}
        sources = [split_of_folders(masks, images, expected, **suffixes)]
    return sources


def name_of(config: str | Path | Config) -> str:
    """A config as the user knows it."""
    if isinstance(config, Config):
        return config.filename or '<Config>'
    return str(config)


def _of_coco(
    file: Path,
    images: str | Path | None,
    masks: str | Path | None,
    classes: Sequence[str],
) -> SplitSource:
    if not file.exists():
        raise FileNotFoundError(
            f'--coco must be an annotation file, got {str(file)!r}'
        )
    expected = Expectations(task='detection', classes=tuple(classes))
    path, images = str(file), str(images or '')
    with open_regular(file) as content:
        panoptic = holds_key(content)
    if panoptic:
        maps = str(masks or file.with_suffix(''))
        return split_of_panoptic(
            path, images, maps, expected, names_of_file=True
        )
    if masks is not None:
        raise ValueError(
            f'--masks beside --coco is for panoptic annotations, which '
            f'{path!r} is not; check them one after the other'
        )
    return split_of_coco(path, images, expected, find_orphans=True)


def refuse_fix(fix: str | Path, sources: Sequence[SplitSource]) -> None:
    """Raise ValueError if some label files are of a kind not repaired."""
    for source in sources:
        first = next(iter(source.samples()), None)
        kind = ''
        if source.expected.loader_backend == 'npy':
            kind = 'npy files'
        elif source.expected.task == 'panoptic':
            kind = 'panoptic annotations'
        elif first is not None and first.annotation_kind == 'yolo':
            kind = 'label files of YOLO'
        elif first is not None and not is_on_disk(
            first.mask or first.annotation, source.backend_args
        ):
            kind = 'files that are not on a disk of this machine'
        if kind:
            raise ValueError(
                f'--fix {fix} does not repair {kind}; correct them as the '
                'remedies of the findings say'
            )


# Locations that are named of a finding, without --all.
_EXAMPLES = 5

_Path = str | Path | None


class LabelCheck(NamedTuple):
    """What :func:`check_labels` gives back."""

    # Findings in groups, with their counts, and what each split holds.
    report: Report
    exit_code: int  # 1 with a finding at or above `fail_on`, else 0.


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
            config: see :func:`~mmext.checks.labels.run.sources_of`.

    Raises:
        ValueError: If settings are wrong or do not go together.
        OSError: If data are missing, or an output cannot be written.
    """
    if fail_on not in ('info', 'warning', 'error'):
        raise ValueError(
            f"--fail-on must be 'info', 'warning' or 'error', got {fail_on!r}"
        )
    run = choose_backend(workers, scheduler)
    if fix is not None and select:
        # A fix of labels that mean something else would spoil them.
        explaining = [rule.id for rule in RULES.values() if rule.explains]
        select = [*select, *explaining]
    rules = select_rules(RULES, select, ignore)
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

                summary = fix_labels(sources, facts, fix, report)
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
    from .page import make_gallery, report_html

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
