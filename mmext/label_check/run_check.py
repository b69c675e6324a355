"""What ``tools/validate_labels.py`` does, from its settings to the report."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..utils.files import atomic_path
from .backends import joblib_backend, serial
from .check import check_labels, work_items
from .class_weights import (
    CLASS_WEIGHT_KINDS,
    class_weights,
    format_class_weights,
)
from .expectations import Expectations
from .findings import Severity
from .report import Report, report_json
from .report_sarif import report_sarif
from .report_table import print_report, print_rules
from .rules import describe_rules, select_rules
from .sources import SplitSource, split_of_folders
from .store import FactStore

__all__ = ['CheckSettings', 'list_rules', 'run_check', 'sources_of']


class CheckSettings(msgspec.Struct, kw_only=True):
    """Settings of a check; those of the tool, by the same names.

    Attributes:
        config: Config file, or None.
        split: Splits of the config.
        cfg_options: Settings to put over it.
        masks: Folder of label maps, without a config.
        images: Folder of their images.
        mask_suffix: End of names of label maps that images lack.
        image_suffix: The same of images.
        num_classes: Of ``masks``.
        ignore_index: Of ``masks``.
        select: Rules to apply; empty for all.
        ignore: Rules not to apply.
        fail_on: Least severity that makes the exit code 1.
        json: File for the report; None for none.
        sarif: The same in SARIF.
        class_weights: Kind of weights to print; None for none.
        store: File that keeps facts.
        workers: Processes; 0 for one each CPU.
    """

    config: str | None = None
    split: Sequence[str] = ('train', 'val')
    cfg_options: dict | None = None
    masks: Path | None = None
    images: Path | None = None
    mask_suffix: str = ''
    image_suffix: str = ''
    num_classes: int | None = None
    ignore_index: int | None = 255
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    fail_on: str = 'error'
    json: Path | None = None
    sarif: Path | None = None
    class_weights: str | None = None
    store: Path = Path('work_dirs/label_check.sqlite')
    workers: int = 0


def list_rules(console: Console | None = None) -> None:
    """Print all rules.

    Args:
        console: Where to; None for standard output.
    """
    print_rules(describe_rules(), console or Console())


def sources_of(settings: CheckSettings) -> list[SplitSource]:
    """What is to be checked.

    Args:
        settings: With a config, or with ``masks``.

    Returns:
        A source for each split.

    Raises:
        FileNotFoundError: If the config or its data are not there.
        ValueError: If there is neither or both, or ``num_classes`` is
            missing.
    """
    if (settings.config is None) == (settings.masks is None):
        raise ValueError(
            'give a config, or --masks with a folder of label maps; got '
            f'config={settings.config!r} and --masks={settings.masks}'
        )
    if settings.config is not None:
        # Not at the top: this loads the hosts, which bare files do not need.
        from ..apis.detector import read_config
        from ..datasets import check_data_paths
        from .sources.config_source import splits_of_config

        cfg = read_config(settings.config, cfg_options=settings.cfg_options)
        check_data_paths(cfg, settings.split)
        return splits_of_config(cfg, settings.split)
    if not settings.num_classes or settings.num_classes < 1:
        raise ValueError(
            '--masks needs --num-classes, a number of at least 1, got '
            f'{settings.num_classes}'
        )
    expected = Expectations(
        split='train',
        num_classes=settings.num_classes,
        ignore_index=settings.ignore_index,
    )
    return [
        split_of_folders(
            settings.masks,
            settings.images,
            expected,
            mask_suffix=settings.mask_suffix,
            image_suffix=settings.image_suffix,
        )
    ]


def _weights(report: Report, kind: str) -> str:
    """Class weights of the first split."""
    split = report.splits[0]
    weights = class_weights(
        kind,
        [each.pixels for each in split.classes],
        [each.area for each in split.classes],
    )
    return f'# {kind}, from {split.split}\n{format_class_weights(weights)}'


def _check(settings: CheckSettings, sources: list[SplitSource]) -> Report:
    rules = select_rules(settings.select, settings.ignore)
    run = serial.run
    if settings.workers != 1:
        run = partial(joblib_backend.run, workers=settings.workers)
    total = sum(1 for _ in work_items(sources))
    settings.store.parent.mkdir(parents=True, exist_ok=True)
    bar = Progress(
        TextColumn('reading files'),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with FactStore(settings.store) as store, bar:
        task = bar.add_task('', total=total)
        return check_labels(
            sources,
            store,
            rules=rules,
            run=run,
            progress=lambda done: bar.update(task, completed=done),
        )


def run_check(settings: CheckSettings, console: Console | None = None) -> int:
    """Check, print, and write what is asked for.

    Args:
        settings: What, and how.
        console: For the report; None for standard output.

    Returns:
        0 without a finding at or above ``fail_on``, 1 with one.

    Raises:
        FileNotFoundError: If the config or its data are not there.
        ValueError: If a setting is not as said.
    """
    if settings.workers < 0:
        raise ValueError(
            f'--workers must be at least 0, got {settings.workers}'
        )
    kind = settings.class_weights
    if kind is not None and kind not in CLASS_WEIGHT_KINDS:
        raise ValueError(
            f'--class-weights must be one of {sorted(CLASS_WEIGHT_KINDS)}, '
            f'got {kind!r}'
        )
    report = _check(settings, sources_of(settings))
    console = console or Console()
    print_report(report, console)
    if kind is not None:
        console.print(f'\n{_weights(report, kind)}', highlight=False)
    for file, form in (
        (settings.json, report_json),
        (settings.sarif, report_sarif),
    ):
        if file is not None:
            with atomic_path(str(file)) as temporary:
                Path(temporary).write_bytes(form(report))
    worst = report.worst()
    limit = Severity[settings.fail_on.upper()]
    return int(worst is not None and worst >= limit)
