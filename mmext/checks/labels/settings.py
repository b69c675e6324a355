"""Settings of a check of labels."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from .class_weights import CLASS_WEIGHT_KINDS

BACKENDS = ('serial', 'joblib', 'dask')


class CheckSettings(msgspec.Struct, kw_only=True):
    """Settings of a check; those of the tool, by the same names.

    Attributes:
        config: Config file, or None.
        split: Splits of the config, of ``voc``, ``yolo`` or ``nyuv2``.
        cfg_options: Settings to put over the config.
        masks: Folder of label maps, without a config.
        coco: Annotation file in COCO's format, without a config.
        voc: Folder of annotation files in Pascal VOC's form, without a
            config.
        yolo: ``data.yaml`` of YOLO, or the folder that holds one, without a
            config.
        nyuv2: Folder of splits in the layout of the pre-processed NYUv2,
            without a config.
        images: Folder of the images of ``masks``, ``coco`` or ``voc``.
        mask_suffix: End of names of label maps that images lack.
        image_suffix: The same of images.
        num_classes: Of ``masks``.
        classes: Names of the classes, in the order of labels.
        ignore_index: Of ``masks``.
        reduce_zero_label: Of ``masks``: 0 is no class, 1 the first one.
        verify: Compare the checksum of the pixels of PNG label maps, too,
            which doubles the time to read them. Without, the checksums of
            the file's parts are compared, and that all pixels are there.
        select: Rules to apply; empty for all.
        ignore: Rules not to apply.
        fail_on: Least severity that makes the exit code 1.
        json: File for the report; None for none.
        sarif: The same in SARIF.
        html: The same as a page to read.
        jsonl: File for all places of all findings, one a line, as JSON.
        csv: The same as CSV.
        all: Name all places in the other reports, too, but for the page.
        verbose: Print how much there is of each class.
        fix: Folder for repaired label files; None not to repair.
        class_weights: Kind of weights to print, of pixels or else of
            objects; None for none.
        store: File that keeps facts.
        workers: Processes; 0 for one each CPU.
        backend: What reads files: ``'serial'``, ``'joblib'`` or ``'dask'``.
        scheduler: Address of the cluster, for the latter.
    """

    config: str | None = None
    split: Sequence[str] = ('train', 'val')
    cfg_options: dict | None = None
    masks: Path | None = None
    coco: Path | None = None
    voc: Path | None = None
    yolo: Path | None = None
    nyuv2: Path | None = None
    images: Path | None = None
    mask_suffix: str = ''
    image_suffix: str = ''
    num_classes: int | None = None
    classes: Sequence[str] = ()
    ignore_index: int | None = 255
    reduce_zero_label: bool = False
    verify: bool = False
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    fail_on: str = 'error'
    json: Path | None = None
    sarif: Path | None = None
    html: Path | None = None
    jsonl: Path | None = None
    csv: Path | None = None
    all: bool = False
    verbose: bool = False
    fix: Path | None = None
    class_weights: str | None = None
    store: Path = Path('work_dirs/label_check.sqlite')
    workers: int = 0
    backend: str = 'joblib'
    scheduler: str | None = None


def check_settings(settings: CheckSettings) -> None:
    """Raise ValueError for settings that do not go together."""
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
    if settings.backend not in BACKENDS:
        raise ValueError(
            f'--backend must be one of {BACKENDS}, got {settings.backend!r}'
        )
    if settings.backend == 'dask' and not settings.scheduler:
        raise ValueError(
            '--backend dask needs --scheduler, such as '
            "'tcp://10.0.0.1:8786', got none"
        )
    if settings.scheduler and settings.backend != 'dask':
        raise ValueError(
            '--scheduler must come with --backend dask, got '
            f'{settings.scheduler!r} with {settings.backend!r}'
        )
