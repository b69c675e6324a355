"""Splits of folders, without a config.

Label maps beside images; and splits whose samples have label files of their
own: Pascal VOC's XML files, YOLO's label files, and NYUv2's layout with a file
of each kind for each sample.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from io import StringIO
from pathlib import Path

import msgspec
from mmengine.fileio import get

from ....datasets import (
    classes_of_layout,
    find_yolo_data,
    layout_files,
    yolo_label_path,
    yolo_pictures,
)
from ..expectations import Expectations, SplitSource
from ..facts import Orphan, Sample

MASK_SUFFIXES = ('.png', '.tif', '.tiff', '.bmp', '.gif')
# Of label maps where no other ones are; else they are pictures beside them.
_LOSSY_SUFFIXES = ('.jpg', '.jpeg', '.webp')
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
_ANNOTATIONS, _IMAGES, _LISTS = 'Annotations', 'JPEGImages', 'ImageSets/Main'
# Text files beside YOLO's labels that hold none.
_NO_LABELS = ('/classes.txt', '/labels.txt', '/notes.txt')


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
            if not os.path.islink(os.path.join(parent, name))
            or Path(parent, name).resolve()
            not in map(Path.resolve, Path(parent, name).absolute().parents)
        ]
        for name in sorted(names):
            if name.lower().endswith(suffixes):
                yield os.path.join(parent, name)


def stem_below(path: str, folder: str, suffix: str = '') -> str:
    """Path of a file inside of a folder, with ``/``, without its suffix.

    ``suffix`` is taken away from the end, or else what follows the last dot
    and ``suffix`` before that.
    """
    name = path[len(folder) :].lstrip(os.sep).replace(os.sep, '/')
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
    others are orphans. In Pascal VOC's layout, an image without a label map
    that no list names is an orphan, as most of them have none.

    ``mask_suffix`` is the suffix of the names of mask files, such as
    ``'_gtFine_labelTrainIds.png'``, with or without the extension; files that
    end otherwise are of another kind, and not looked at.
    """
    for name, folder in (('masks', masks), ('images', images)):
        if folder is not None and not Path(folder).is_dir():
            raise NotADirectoryError(
                f'{name} must be an existing folder, got {str(folder)!r}'
            )
    masks = Path(masks)
    kinds, beside = MASK_SUFFIXES, Path(images or masks.parent).resolve()
    # JPEG and WebP are label maps if nothing else can be one.
    if not any(_fits(f, mask_suffix) for f in files_below(masks, kinds)) and (
        mask_suffix or masks.resolve() not in (beside, *beside.parents)
    ):
        kinds += _LOSSY_SUFFIXES
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


def split_of_pairs(
    pairs: Iterable[tuple[str, str]],
    expected: Expectations,
    *,
    kind: str = 'voc',
    orphans: Sequence[Orphan] = (),
    list_file: str = '',
    backend_args: dict | None = None,
) -> SplitSource:
    """A sample for each pair of paths: image and its annotation file.

    ``kind`` is that of the files, ``'voc'`` or ``'yolo'``. Without
    ``expected.classes``, these will be the names that files of VOC have.
    """
    pairs = tuple(pairs)

    def samples() -> Iterator[Sample]:
        for index, (image, annotation) in enumerate(pairs):
            yield Sample(
                index=index,
                image=image,
                annotation=annotation,
                annotation_kind=kind,
            )

    return SplitSource(
        expected,
        samples,
        orphans=lambda: iter(orphans),
        learn_classes=kind == 'voc' and not expected.classes,
        list_file=list_file,
        backend_args=backend_args,
    )


def _of_boxes(
    split: str, classes: Sequence[str], kpt_shape: tuple[int, ...] = ()
) -> Expectations:
    return Expectations(
        split=split,
        task='detection',
        classes=tuple(classes),
        num_classes=len(classes),
        kpt_shape=kpt_shape,
    )


def splits_of_voc(
    folder: str | Path,
    splits: Sequence[str],
    *,
    images: str | Path | None = None,
    classes: Sequence[str] = (),
) -> list[SplitSource]:
    """A folder of annotation files, one split for each list that is asked for.

    The folder has ``Annotations``, ``JPEGImages`` and, for the splits,
    ``ImageSets/Main``, as Pascal VOC has it, or is above the one that has
    (``VOCdevkit``); or simply XML files. Without a list of any of the splits,
    all annotation files are one, ``'train'``. An annotation file that no list
    names, and an image without one, is an orphan of the first split.
    """
    root = Path(folder)
    kits = [*root.glob('VOC*/ImageSets'), *root.glob('VOC*/VOC*/ImageSets')]
    if kits and not (root / _ANNOTATIONS).is_dir():
        # VOCdevkit, or what it is in.
        if len(kits) > 1:
            raise ValueError(
                'voc must have one folder with ImageSets, got '
                f'{sorted(map(str, kits))}; name one of them'
            )
        root = kits[0].parent
    annotations = root / _ANNOTATIONS
    annotations = annotations if annotations.is_dir() else root
    pictures = Path(images) if images is not None else root / _IMAGES
    if images is None and not pictures.is_dir():
        pictures = root
    for name, path in (('voc', root), ('images', pictures)):
        if not path.is_dir():
            raise NotADirectoryError(
                f'{name} must be an existing folder, got {str(path)!r}'
            )
    names = names_below(annotations, ('.xml',))
    if not names:
        raise FileNotFoundError(
            f'voc must hold XML files in it or in {_ANNOTATIONS}/, got '
            f'{str(root)!r}'
        )
    files = names_below(pictures, IMAGE_SUFFIXES)
    # All of them: what the list of another split names is no orphan.
    lists = {
        path.stem: read_voc_list(path)
        for path in sorted((root / _LISTS).glob('*.txt'))
    }
    asked = {split: lists[split] for split in splits if split in lists}
    asked = asked or {'train': list(names)}
    # Lists of classes add 1, 0 or -1.
    named = {name for listed in asked.values() for name in listed} | {
        re.sub(r'\s+(-1|0|1)\s*$', '', line)
        for listed in lists.values()
        for line in listed
    }
    first = next(iter(asked))
    orphans = [
        Orphan(split=first, path=path, kind=kind)
        for kind, paths in (('annotation', names), ('image', files))
        for name, path in paths.items()
        if name not in named
    ]
    return [
        split_of_pairs(
            [
                (
                    files.get(name, str(pictures / f'{name}.jpg')),
                    names.get(name, str(annotations / f'{name}.xml')),
                )
                for name in listed
            ],
            _of_boxes(split, classes),
            orphans=orphans if split == first else (),
            list_file=str(root / _LISTS / f'{split}.txt')
            if split in lists
            else '',
        )
        for split, listed in asked.items()
    ]


def names_below(folder: str | Path, ends: tuple[str, ...]) -> dict[str, str]:
    """Name without suffix -> path; of several .jpg, as XMLDataset reads."""
    paths = files_below(folder, ends)
    ordered = sorted(paths, key=lambda path: path.endswith('.jpg'))
    return {stem_below(path, str(folder)): path for path in ordered}


def read_voc_list(
    path: str | Path, backend_args: dict | None = None
) -> list[str]:
    """Whole lines of a list of names, as XMLDataset takes them.

    Raises:
        ValueError: If it is not text in UTF-8; file and byte are named.
    """
    try:
        text = get(path, backend_args=backend_args).decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f'{path} must be text in UTF-8, as the loader reads it, got byte '
            f'{error.object[error.start]:#04x} at {error.start}; save it as '
            'UTF-8'
        ) from error
    return [line.rstrip('\r\n') for line in StringIO(text)]


def splits_of_yolo(
    path: str | Path,
    splits: Sequence[str],
    *,
    classes: Sequence[str] = (),
) -> list[SplitSource]:
    """Pictures and their label files, one split for each that is there.

    A text file beside the label files of a split that is of no picture, be
    it of another split, is an orphan.
    """
    data = find_yolo_data(path, classes)
    results = [split for split in splits if split in data.splits]
    if not results:
        raise ValueError(
            f'split must be some of {sorted(data.splits)}, which {path} has, '
            f'got {list(splits)}'
        )
    pairs = {
        split: [
            (picture, yolo_label_path(picture))
            for part in parts
            for picture in yolo_pictures(str(part), str(data.root))
        ]
        for split, parts in data.splits.items()
    }
    known = {label for own in pairs.values() for _, label in own}

    def orphans(split: str) -> Iterator[Orphan]:
        folders = {os.path.dirname(label) for _, label in pairs[split]}
        for folder in sorted(folders):
            for file in map(str, sorted(Path(folder).glob('*.txt'))):
                if file not in known and not file.endswith(_NO_LABELS):
                    yield Orphan(split=split, path=file, kind='annotation')

    return [
        split_of_pairs(
            pairs[split],
            _of_boxes(split, data.names, data.kpt_shape),
            kind='yolo',
            orphans=tuple(orphans(split)),
            list_file=next(
                map(str, filter(Path.is_file, data.splits[split])), ''
            ),
        )
        for split in results
    ]


def split_of_layout(folder: str, expected: Expectations) -> SplitSource:
    """A sample for each name that occurs in any of NYUv2's four folders."""
    files = layout_files(folder)

    def samples() -> Iterator[Sample]:
        for index, paths in enumerate(files):
            yield Sample(
                index=index,
                image=paths['image'],
                mask=paths['label'],
                depth=paths['depth'],
                normal=paths['normal'],
            )

    expected = msgspec.structs.replace(expected, loader_backend='npy')
    return SplitSource(expected, samples)


def splits_of_layout(
    root: str | Path, splits: Sequence[str], *, classes: Sequence[str] = ()
) -> list[SplitSource]:
    """The splits that are there of those asked for.

    Without ``classes``, those that a generated set notes, or NYUv2's.
    """
    results = [name for name in splits if (Path(root) / name).is_dir()]
    if not results:
        raise NotADirectoryError(
            f'--nyuv2 must be a folder with one of the splits '
            f'{", ".join(splits)}, got {str(root)!r}'
        )
    names = tuple(classes or classes_of_layout(root))
    return [
        split_of_layout(
            str(Path(root) / name),
            Expectations(split=name, num_classes=len(names), classes=names),
        )
        for name in results
    ]
