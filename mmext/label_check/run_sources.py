"""What is to be checked, by the settings of a check."""

from dataclasses import replace
from pathlib import Path

from .expectations import Expectations
from .settings import CheckSettings
from .sources import (
    SplitSource,
    split_of_coco,
    split_of_folders,
    splits_of_voc,
)

__all__ = ['sources_of']

_BARE = ('masks', 'coco', 'voc')


def sources_of(settings: CheckSettings) -> list[SplitSource]:
    """What is to be checked.

    Args:
        settings: With a config, or with ``masks``, ``coco`` or ``voc``.

    Returns:
        A source for each split.

    Raises:
        FileNotFoundError: If the config or its data are not there.
        NotADirectoryError: If a folder is none.
        ValueError: If there is none of them or more than one, or
            ``num_classes`` is missing.
    """
    given = [
        f'--{name} {getattr(settings, name)}'
        for name in _BARE
        if getattr(settings, name) is not None
    ]
    if settings.config is not None:
        given.insert(0, f'the config {settings.config}')
    if len(given) != 1:
        raise ValueError(
            'give a config, or --masks, --coco or --voc with data to check '
            f'without one; got {" and ".join(given) or "none of them"}'
        )
    return [
        replace(each, verify=settings.verify) for each in _sources(settings)
    ]


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
    return [_of_masks(settings)]


def _check_folder(images: Path | None) -> None:
    if images is not None and not images.is_dir():
        raise NotADirectoryError(
            f'--images must be an existing folder, got {str(images)!r}'
        )


def _of_config(settings: CheckSettings) -> list[SplitSource]:
    # Not at the top: this loads the hosts, which bare files do not need.
    from ..apis.detector import read_config
    from ..datasets import check_data_paths
    from .sources.config_source import splits_of_config

    cfg = read_config(settings.config, cfg_options=settings.cfg_options)
    check_data_paths(cfg, settings.split)
    return splits_of_config(cfg, settings.split)


def _of_coco(settings: CheckSettings) -> SplitSource:
    if not settings.coco.is_file():
        raise FileNotFoundError(
            f'--coco must be an annotation file, got {str(settings.coco)!r}'
        )
    return split_of_coco(
        str(settings.coco),
        str(settings.images or ''),
        Expectations(task='detection', classes=tuple(settings.classes)),
        find_orphans=True,
    )


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
            with_images=settings.images is not None,
        ),
        mask_suffix=settings.mask_suffix,
        image_suffix=settings.image_suffix,
    )
