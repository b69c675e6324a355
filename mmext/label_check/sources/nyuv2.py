"""Splits in NYUv2's layout: a file of each kind for each sample."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ...datasets import classes_of_layout, layout_files
from ..expectations import Expectations
from ..facts import Sample
from .split_source import SplitSource

__all__ = ['split_of_layout', 'splits_of_layout']


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
    root: str | Path,
    splits: Sequence[str],
    *,
    classes: Sequence[str] = (),
    num_classes: int | None = None,
) -> list[SplitSource]:
    """The splits that are there of those asked for.

    Args:
        root: Folder with the splits.
        splits: Their names.
        classes: Names in the order of labels; empty for those that a
            generated set notes, or NYUv2's.
        num_classes: None for the number of names.

    Raises:
        NotADirectoryError: If none of the splits is there.
        FileNotFoundError: If one lacks a folder.
    """
    present = [name for name in splits if (Path(root) / name).is_dir()]
    if not present:
        raise NotADirectoryError(
            f'--nyuv2 must be a folder with one of the splits '
            f'{", ".join(splits)}, got {str(root)!r}'
        )
    number = num_classes or len(classes or classes_of_layout(root))
    names = tuple(classes or classes_of_layout(root))
    if classes and len(classes) != number:
        raise ValueError(
            f'--classes must have as many names as --num-classes says, got '
            f'{len(classes)} and {number}'
        )
    return [
        split_of_layout(
            str(Path(root) / name),
            Expectations(
                split=name,
                num_classes=number,
                classes=names if len(names) == number else (),
            ),
        )
        for name in present
    ]
