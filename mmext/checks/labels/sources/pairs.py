"""Splits whose samples have label files of their own.

These are Pascal VOC's XML files, YOLO's label files, and NYUv2's layout with
a file of each kind for each sample.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path

import msgspec

from ....datasets import (
    classes_of_layout,
    find_yolo_data,
    layout_files,
    yolo_label_path,
    yolo_pictures,
)
from ..expectations import Expectations, SplitSource
from ..facts import Orphan, Sample
from .folder import IMAGE_SUFFIXES, files_below, stem_below

_ANNOTATIONS, _IMAGES, _LISTS = 'Annotations', 'JPEGImages', 'ImageSets/Main'
# Text files beside YOLO's labels that hold none.
_NO_LABELS = ('/classes.txt', '/labels.txt', '/notes.txt')


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

    An annotation file that no list names, and an image without one, is an
    orphan of the first split.

    Args:
        folder: With ``Annotations``, ``JPEGImages`` and, for the splits,
            ``ImageSets/Main``, as Pascal VOC has it; or simply of XML files.
        splits: Those to take of the lists in ``ImageSets/Main``. Without
            any list of that name, all annotation files are one split,
            ``'train'``.
        images: Folder of the images; None for ``JPEGImages``, or beside the
            XML files.
        classes: Names in the order of labels; empty for those that occur.
    """
    root = Path(folder)
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


def read_voc_list(path: Path) -> list[str]:
    """Whole lines of a list of names, as XMLDataset takes them.

    Raises:
        ValueError: If it is not text in UTF-8; file and byte are named.
    """
    try:
        text = path.read_bytes().decode()
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
