"""Label maps and images in folders, without a config."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..expectations import Expectations
from ..facts import Orphan, Sample
from ..spool import Spool
from .folder_files import (
    IMAGE_SUFFIXES,
    MASK_SUFFIXES,
    names_in,
    stem_below,
)
from .split_source import SplitSource

__all__ = ['split_of_folders']


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
        Samples in the order of names, those of a folder before those of the
        folders in it; one for each label map and each image without a label
        map. Of files of the same name and different
        suffixes the first is taken; the others are orphans.

    Raises:
        NotADirectoryError: If a folder is none.

    Note:
        Folders are listed once, one after the other, and names kept in a
        temporary file: memory is that of the largest folder.
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
    def rows() -> Spool:
        ends = mask_suffix, image_suffix
        roots = str(folders['masks']), str(folders.get('images', ''))
        return Spool(_rows(roots, ends))

    def samples() -> Iterator[Sample]:
        number = 0
        for kind, image, mask in rows():
            if not kind:
                yield Sample(index=number, image=image, mask=mask)
                number += 1

    def orphans() -> Iterator[Orphan]:
        for kind, image, mask in rows():
            if kind:
                path = image or mask
                yield Orphan(split=expected.split, path=path, kind=kind)

    return SplitSource(expected, samples, orphans=orphans)


def _rows(
    roots: tuple[str, str], ends: tuple[str, str], below: str = ''
) -> Iterator[tuple[str, str, str]]:
    """Kind of an orphan, image and mask of all folders, one at a time."""
    inner: set[str] = set()
    found: dict[str, list[str]] = {}
    twins = []
    suffixes = MASK_SUFFIXES, IMAGE_SUFFIXES
    for kind, place, root, own, end in zip(
        ('mask', 'image'), (1, 0), roots, suffixes, ends
    ):
        if not root:
            continue
        folder = os.path.join(root, below) if below else root
        names, folders = names_in(folder, own)
        inner.update(folders)
        for name in names:
            pair = found.setdefault(stem_below(name, '', end), ['', ''])
            if pair[place]:
                twins.append((kind, *_at(place, os.path.join(folder, name))))
            else:
                pair[place] = os.path.join(folder, name)
    for stem in sorted(found):
        yield ('', *found[stem])
    yield from twins
    for name in sorted(inner):
        yield from _rows(roots, ends, os.path.join(below, name))


def _at(place: int, path: str) -> tuple[str, str]:
    return (path, '') if place == 0 else ('', path)
