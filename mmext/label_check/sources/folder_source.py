"""Label maps and images in folders, without a config."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..expectations import Expectations
from ..facts import Sample
from .split_source import SplitSource

__all__ = ['split_of_folders']

MASK_SUFFIXES = ('.png', '.tif', '.tiff', '.bmp', '.gif')
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')


def _files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files below a folder, in the order of their names."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(suffixes):
                yield Path(parent, name)


def _stem(path: Path, folder: Path, suffix: str) -> str:
    """Name without folder, and without the suffix that all masks have."""
    name = path.relative_to(folder).as_posix()
    if suffix and name.endswith(suffix):
        return name[: -len(suffix)]
    return name.rpartition('.')[0]


def split_of_folders(
    masks: str | Path,
    images: str | Path | None,
    expected: Expectations,
    *,
    mask_suffix: str = '',
    image_suffix: str = '',
) -> SplitSource:
    """Label maps and images of the same name, whatever their suffix.

    Args:
        masks: Folder of label maps.
        images: Folder of images; None to look at label maps alone.
        expected: What the labels should be.
        mask_suffix: End of the names of label maps that images lack, such as
            ``'_gtFine_labelTrainIds.png'``.
        image_suffix: The same of images.

    Returns:
        Samples in the order of names; one for each label map and each image
        without a label map.

    Raises:
        NotADirectoryError: If a folder is none.

    Note:
        Folders are listed once. Names of all files are held in memory, not
        their contents.
    """
    folders = {'masks': Path(masks)}
    if images is not None:
        folders['images'] = Path(images)
    for name, folder in folders.items():
        if not folder.is_dir():
            raise NotADirectoryError(
                f'{name} must be an existing folder, got {str(folder)!r}'
            )

    @cache
    def pairs_by_stem() -> dict[str, list[str]]:
        pairs: dict[str, list[str]] = {}
        for path in _files(folders['masks'], MASK_SUFFIXES):
            stem = _stem(path, folders['masks'], mask_suffix)
            pairs.setdefault(stem, ['', ''])[1] = str(path)
        if images is not None:
            for path in _files(folders['images'], IMAGE_SUFFIXES):
                stem = _stem(path, folders['images'], image_suffix)
                pairs.setdefault(stem, ['', ''])[0] = str(path)
        return pairs

    def samples() -> Iterator[Sample]:
        pairs = pairs_by_stem()
        for index, stem in enumerate(sorted(pairs)):
            image, mask = pairs[stem]
            yield Sample(index=index, image=image, mask=mask)

    return SplitSource(expected, samples)
