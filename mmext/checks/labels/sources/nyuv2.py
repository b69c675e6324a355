"""Splits in NYUv2's layout: a file of each kind for each sample."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ....datasets import classes_of_layout, layout_files
from ..expectations import Expectations
from ..facts import Sample
from .split_source import SplitSource


def split_of_layout(folder: str, expected: Expectations) -> SplitSource:
    """A sample for each name that occurs in any of the four folders.

    Raises:
        FileNotFoundError: If one of the folders is missing.
    """
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

    Args:
        root: Folder with the splits.
        splits: Their names.
        classes: Names in the order of labels; empty for those that a
            generated set notes, or NYUv2's.

    Raises:
        NotADirectoryError: If none of the splits is there.
        FileNotFoundError: If one lacks a folder.
    """
    folders = {name: Path(root) / name for name in splits}
    folders = {name: path for name, path in folders.items() if path.is_dir()}
    if not folders:
        raise NotADirectoryError(
            f'--nyuv2 must be a folder with one of the splits '
            f'{", ".join(splits)}, got {str(root)!r}'
        )
    names = tuple(classes or classes_of_layout(root))
    settings = {'num_classes': len(names), 'classes': names}
    return [
        split_of_layout(str(path), Expectations(split=name, **settings))
        for name, path in folders.items()
    ]
