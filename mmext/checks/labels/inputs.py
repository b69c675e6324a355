"""What is to be checked: a source for each split, from a config or without."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ...datasets import is_layout
from .expectations import Expectations, SplitSource
from .readers.panoptic import holds_key
from .sources.coco import split_of_coco, split_of_panoptic
from .sources.folder import split_of_folders
from .sources.pairs import (
    splits_of_layout,
    splits_of_voc,
    splits_of_yolo,
)

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
    verify: bool = False,
) -> list[SplitSource]:
    """A source for each split that is to be checked.

    Args:
        config: Config, or its file; a folder is taken for ``nyuv2``.
        split: Splits of the config, of ``voc``, ``yolo`` or ``nyuv2``.
        cfg_options: Settings to put over the config.
        masks: Folder of label maps, without a config; beside ``coco``, the
            PNG files of a panoptic one.
        coco: Annotation file in COCO's format.
        voc: Folder of annotation files in Pascal VOC's form.
        yolo: ``data.yaml`` of YOLO, or the folder that holds one.
        nyuv2: Folder of splits in the layout of the pre-processed NYUv2.
        images: Folder of the images of ``masks``, ``coco`` or ``voc``.
        mask_suffix: Suffix of mask file names that images lack.
        image_suffix: The same of images.
        num_classes: Of ``masks``.
        classes: Names of the classes, in the order of labels.
        ignore_index: Of ``masks``.
        reduce_zero_label: Of ``masks``: 0 is no class, 1 the first one.
        verify: Compare the checksum of the pixels of PNG label maps, too,
            which doubles the time to read them. Without, the checksums of
            the file's parts are compared, and that all pixels are there.

    Raises:
        ValueError: If not exactly one thing to check is given, or settings
            do not fit it.
        OSError: If it is not there.
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
        sources = _of_config(config, split, cfg_options)
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
    return [replace(source, verify=verify) for source in sources]


def name_of(config: str | Path | Config) -> str:
    """A config as the user knows it."""
    if isinstance(config, Config):
        return config.filename or '<Config>'
    return str(config)


def _of_config(
    config: str | Path | Config,
    splits: Sequence[str],
    cfg_options: Mapping[str, Any] | None,
) -> list[SplitSource]:
    # Not at the top: this loads the hosts, which bare files do not need.
    from ...utils.safe_load import careful_readers
    from ..config import check_data_paths, read_config
    from .sources.config import splits_of_config

    cfg = read_config(config, cfg_options=cfg_options, own_imports=False)
    check_data_paths(cfg, splits)
    with careful_readers(cfg.get('trust_checkpoint') is True):
        return splits_of_config(cfg, splits)


def _of_coco(
    file: Path,
    images: str | Path | None,
    masks: str | Path | None,
    classes: Sequence[str],
) -> SplitSource:
    if not file.is_file():
        raise FileNotFoundError(
            f'--coco must be an annotation file, got {str(file)!r}'
        )
    expected = Expectations(task='detection', classes=tuple(classes))
    path, images = str(file), str(images or '')
    with file.open('rb') as content:
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
        if kind:
            raise ValueError(
                f'--fix {fix} does not repair {kind}; correct them as the '
                'remedies of the findings say'
            )
