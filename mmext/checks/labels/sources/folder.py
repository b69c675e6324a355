"""Label maps and images in folders, without a config."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..expectations import Expectations, SplitSource
from ..facts import Orphan, Sample

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
            if not _leads_back(os.path.join(parent, name))
        ]
        for name in sorted(names):
            if name.lower().endswith(suffixes):
                yield os.path.join(parent, name)


def _leads_back(path: str) -> bool:
    """Whether a folder is a symbolic link to one that it is in."""
    return os.path.islink(path) and Path(path).resolve() in map(
        Path.resolve, Path(path).absolute().parents
    )


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
    others are orphans.

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
    """
    for name, folder in (('masks', masks), ('images', images)):
        if folder is not None and not Path(folder).is_dir():
            raise NotADirectoryError(
                f'{name} must be an existing folder, got {str(folder)!r}'
            )
    masks = Path(masks)
    kinds = _mask_suffixes(masks, Path(images or masks.parent), mask_suffix)
    _check_suffix(masks, kinds, mask_suffix, 'mask_suffix')
    if images is not None:
        _check_suffix(images, IMAGE_SUFFIXES, image_suffix, 'image_suffix')

    @cache
    def listed() -> tuple[list[Sample], list[Orphan]]:
        pairs: dict[str, dict[str, str]] = {}
        orphans = []

        def add(kind: str, root: str | Path, own: tuple, end: str) -> None:
            for path in files_below(root, own):
                if not _fits(path, end):
                    continue
                pair = pairs.setdefault(stem_below(path, str(root), end), {})
                if pair.setdefault(kind, path) != path:
                    orphans.append(orphan(path, kind))

        def orphan(path: str, kind: str) -> Orphan:
            return Orphan(split=expected.split, path=path, kind=kind)

        add('mask', masks, kinds, mask_suffix)
        if images is not None:
            add('image', images, IMAGE_SUFFIXES, image_suffix)
        named, samples = _voc_names(masks), []
        for stem in sorted(pairs, key=_files_first):
            pair = pairs[stem]
            name = stem.rpartition('/')[2]
            if named is not None and name not in named and 'mask' not in pair:
                orphans.append(orphan(pair['image'], 'image'))
            else:
                samples.append(Sample(index=len(samples), **pair))
        return samples, orphans

    return SplitSource(
        expected, lambda: iter(listed()[0]), orphans=lambda: iter(listed()[1])
    )


def _files_first(stem: str) -> list[tuple[bool, str]]:
    """Key that sorts files of a folder before those of folders in it."""
    *folders, name = stem.split('/')
    return [*((True, folder) for folder in folders), (False, name)]


def _mask_suffixes(masks: Path, images: Path, end: str) -> tuple[str, ...]:
    """Of label maps; JPEG and WebP among them if nothing else can be one."""
    beside = masks.resolve() in (images.resolve(), *images.resolve().parents)
    plain = any(_fits(path, end) for path in files_below(masks, MASK_SUFFIXES))
    if plain or (beside and not end):
        return MASK_SUFFIXES
    return MASK_SUFFIXES + _LOSSY_SUFFIXES


def _check_suffix(
    folder: str | Path, suffixes: tuple[str, ...], end: str, option: str
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
