"""Label maps and images in folders, without a config."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..expectations import Expectations
from ..facts import Orphan, Sample
from ..store import TemporaryRows
from .split_source import SplitSource

MASK_SUFFIXES = ('.png', '.tif', '.tiff', '.bmp', '.gif')
# Of label maps where no other ones are; else they are pictures beside them.
_LOSSY_SUFFIXES = ('.jpg', '.jpeg', '.webp')
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')


def files_below(
    folder: str | Path, suffixes: tuple[str, ...]
) -> Iterator[str]:
    """Files below a folder, in the order of names; none if it is absent.

    ``suffixes`` are in lower case; those of the files may be in any. Links to
    folders are followed, as loaders do, but for those that lead to a folder
    they are in.
    """
    # Texts rather than Path: of 100,000 files these alone take seconds.
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [
            name
            for name in sorted(folders)
            if not leads_back(os.path.join(parent, name))
        ]
        for name in sorted(names):
            if name.lower().endswith(suffixes):
                yield os.path.join(parent, name)


def leads_back(path: str) -> bool:
    """Whether a folder is a symbolic link to one that it is in."""
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    return any(
        os.path.realpath(parent) == target
        for parent in Path(path).absolute().parents
    )


def names_in(
    folder: str, suffixes: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Names of files and of folders directly in a folder, in order."""
    files, folders = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.lower().endswith(suffixes):
                    files.append(entry.name)
                elif entry.is_dir() and not leads_back(entry.path):
                    folders.append(entry.name)
    except FileNotFoundError:
        return [], []
    return sorted(files), sorted(folders)


def stem_below(path: str, folder: str, suffix: str = '') -> str:
    """Path of a file inside of a folder, with ``/``, without its suffix.

    ``suffix`` is taken away from the end, or else what follows the last dot
    and ``suffix`` before that.
    """
    name = path[len(folder) :].lstrip(os.sep)
    if os.sep != '/':
        name = name.replace(os.sep, '/')
    if suffix and name.endswith(suffix):
        return name[: -len(suffix)]
    return os.path.splitext(name)[0].removesuffix(suffix)


def _fits(name: str, suffix: str) -> bool:
    """Whether a name ends with a suffix, be it before the last dot."""
    return name.endswith((suffix, f'{suffix}{os.path.splitext(name)[1]}'))


def split_of_folders(
    masks: str | Path,
    images: str | Path | None,
    expected: Expectations,
    *,
    mask_suffix: str = '',
    image_suffix: str = '',
) -> SplitSource:
    """Label maps and images of the same name, whatever their suffix.

    A sample for each label map and each image without a label map, in the
    order of names, those of a folder before those of the folders in it. Of
    files of the same name and different suffixes the first is taken; the
    others are orphans. Folders are listed once, and names kept in a temporary
    file: memory is that of the largest folder.

    Args:
        masks: Folder of label maps.
        images: Folder of images; None to look at label maps alone.
        expected: What the labels should be.
        mask_suffix: End of the names of label maps that images lack, such as
            ``'_gtFine_labelTrainIds.png'``, with or without what follows the
            dot. Files that end otherwise are of another kind: nobody looks
            at them.
        image_suffix: The same of images.

    In Pascal VOC's layout, an image without a label map that no list names
    is an orphan, as most of them have none.

    Raises:
        NotADirectoryError: If a folder does not exist.
        ValueError: If there are files, and no name ends with the suffix.
    """
    folders = {'masks': Path(masks)}
    if images is not None:
        folders['images'] = Path(images)
    for name, folder in folders.items():
        if not folder.is_dir():
            raise NotADirectoryError(
                f'{name} must be an existing folder, got {str(folder)!r}'
            )

    maps = _mask_suffixes(folders, mask_suffix)
    for option, kind, suffixes, end in (
        ('mask_suffix', 'masks', maps, mask_suffix),
        ('image_suffix', 'images', IMAGE_SUFFIXES, image_suffix),
    ):
        if end and kind in folders:
            _check_suffix(folders[kind], suffixes, end, option)

    @cache
    def rows() -> TemporaryRows:
        ends = mask_suffix, image_suffix
        roots = str(folders['masks']), str(folders.get('images', ''))
        listed = TemporaryRows(3)
        own = maps, IMAGE_SUFFIXES
        listed.extend(_rows(roots, own, ends, _voc_names(folders['masks'])))
        return listed

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


def _mask_suffixes(folders: dict[str, Path], end: str) -> tuple[str, ...]:
    """Of label maps; JPEG and WebP among them if nothing else can be one."""
    masks = folders['masks'].resolve()
    images = folders.get('images', masks.parent).resolve()
    within = masks in (images, *images.parents)
    if any(_fits(path, end) for path in files_below(masks, MASK_SUFFIXES)):
        return MASK_SUFFIXES
    return MASK_SUFFIXES + (() if within and not end else _LOSSY_SUFFIXES)


def _check_suffix(
    folder: Path, suffixes: tuple[str, ...], end: str, option: str
) -> None:
    """Raise if a folder has files, and none whose name has the suffix."""
    first = ''
    for path in files_below(folder, suffixes):
        if _fits(path, end):
            return
        first = first or os.path.basename(path)
    if first:
        raise ValueError(
            f'{option} must be an end of names in {str(folder)!r}, got '
            f'{end!r}, which none has; the first is {first!r}'
        )


def _voc_names(masks: Path) -> set[str] | None:
    """Names in Pascal VOC's lists of label maps; None in another layout."""
    lists = masks.parent / 'ImageSets'
    if not lists.is_dir():
        return None
    paths = [
        lists / masks.name.replace('Class', '') / f'{split}.txt'
        for split in ('train', 'val', 'trainval')
    ]
    return {
        name
        for path in paths
        if path.is_file()
        for name in path.read_text().split()
    }


def _rows(
    roots: tuple[str, str],
    suffixes: tuple[tuple[str, ...], tuple[str, ...]],
    ends: tuple[str, str],
    wanted: set[str] | None,
    below: str = '',
) -> Iterator[tuple[str, str, str]]:
    """Kind of an orphan, image and mask of all folders, one at a time."""
    inner: set[str] = set()
    paths_of: dict[str, list[str]] = {}
    twins = []
    for kind, place, root, own, end in zip(
        ('mask', 'image'), (1, 0), roots, suffixes, ends
    ):
        if not root:
            continue
        folder = os.path.join(root, below) if below else root
        names, folders = names_in(folder, own)
        inner.update(folders)
        for name in names:
            if end and not _fits(name, end):
                continue
            pair = paths_of.setdefault(stem_below(name, '', end), ['', ''])
            if pair[place]:
                twins.append((kind, *_at(place, os.path.join(folder, name))))
            else:
                pair[place] = os.path.join(folder, name)
    for stem in sorted(paths_of):
        image, mask = paths_of[stem]
        alone = not mask and wanted is not None and stem not in wanted
        yield 'image' if alone else '', image, mask
    yield from twins
    for name in sorted(inner):
        inside = os.path.join(below, name)
        yield from _rows(roots, suffixes, ends, wanted, inside)


def _at(place: int, path: str) -> tuple[str, str]:
    return (path, '') if place == 0 else ('', path)
