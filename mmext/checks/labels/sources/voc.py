"""Splits whose samples have an annotation file each, in Pascal VOC's form."""

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path

import msgspec

from ....utils.files import require_regular_file
from ..expectations import Expectations
from ..facts import Orphan, Sample
from .folder import IMAGE_SUFFIXES, files_below, stem_below
from .split_source import SplitSource

_ANNOTATIONS, _IMAGES, _LISTS = 'Annotations', 'JPEGImages', 'ImageSets/Main'


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

    Raises:
        NotADirectoryError: If a folder does not exist.
        FileNotFoundError: If there is no XML file in it.
        ValueError: If a list is not text in UTF-8.
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
    lists = _lists(root, splits) or {'train': list(names)}
    expected = Expectations(
        task='detection', classes=tuple(classes), num_classes=len(classes)
    )
    files = names_below(pictures, IMAGE_SUFFIXES)
    first = next(iter(lists))
    orphans = _orphans(root, first, lists, names, files)
    return [
        split_of_pairs(
            [
                (
                    files.get(name, str(pictures / f'{name}.jpg')),
                    names.get(name, str(annotations / f'{name}.xml')),
                )
                for name in listed
            ],
            msgspec.structs.replace(expected, split=split),
            orphans=orphans if split == first else (),
            list_file=_list_file(root, split),
        )
        for split, listed in lists.items()
    ]


def names_below(folder: str | Path, ends: tuple[str, ...]) -> dict[str, str]:
    """Name without suffix -> path; of several .jpg, as XMLDataset reads."""
    paths = files_below(folder, ends)
    ordered = sorted(paths, key=lambda path: path.endswith('.jpg'))
    return {stem_below(path, str(folder)): path for path in ordered}


def read_voc_list(path: Path) -> list[str]:
    """Whole lines of a list of names, as XMLDataset takes them.

    Raises:
        IrregularFileError: If it is a FIFO or a device.
        ValueError: If it is not text in UTF-8; file and byte are named.
    """
    require_regular_file(path)
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f'{path} must be text in UTF-8, as the loader reads it, got byte '
            f'{error.object[error.start]:#04x} at {error.start}; save it as '
            'UTF-8'
        ) from error
    return [line.rstrip('\r\n') for line in StringIO(text)]


def _list_file(root: Path, split: str) -> str:
    path = root / _LISTS / f'{split}.txt'
    return str(path) if path.is_file() else ''


def _lists(root: Path, splits: Sequence[str]) -> dict[str, list[str]]:
    paths = {split: root / _LISTS / f'{split}.txt' for split in splits}
    return {
        split: read_voc_list(path)
        for split, path in paths.items()
        if path.is_file()
    }


def _orphans(
    root: Path,
    split: str,
    lists: dict[str, list[str]],
    annotations: dict[str, str],
    images: dict[str, str],
) -> list[Orphan]:
    """Files that no list names, be it of a split that was not asked for."""
    named = {name for listed in lists.values() for name in listed}
    for path in sorted((root / _LISTS).glob('*.txt')):
        # Lists of classes add 1, 0 or -1.
        named.update(
            re.sub(r'\s+(-1|0|1)\s*$', '', line)
            for line in read_voc_list(path)
        )
    left = [
        ('annotation', path)
        for n, path in annotations.items()
        if n not in named
    ]
    left += [('image', path) for n, path in images.items() if n not in named]
    return [Orphan(split=split, path=path, kind=kind) for kind, path in left]
