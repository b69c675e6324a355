"""Lists of samples: those that cannot be trained with, and the others."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from mmengine.fileio import list_from_file

from ..facts import Sample
from ..sources import SplitSource
from .out_tree import common_folder, relative_to

__all__ = ['NOT_TRAINABLE', 'SampleList', 'write_lists']

# Rules whose findings make the loader or the loss fail at a sample, or train
# it with labels that are not its own.
NOT_TRAINABLE = frozenset(
    (
        *(f'IMG00{number}' for number in range(1, 6)),
        *(f'SEG00{number}' for number in range(1, 7)),
        *(f'SEG01{number}' for number in (0, 1, 2, 4, 5, 6, 7, 8, 9)),
        'PAIR001',
        'PAIR002',
        'PAIR006',
        'PAIR007',
        'VOC001',
        'VOC002',
    )
)


class SampleList(msgspec.Struct, frozen=True, kw_only=True):
    """Lists that were written for a split.

    Attributes:
        split: ``'train'``, ``'val'``, ...
        excluded: Number of samples that cannot be trained with.
        exclude_file: Name of the list of them.
        include_file: Name of the list of the others; empty if the split has
            no list of its own that it could take the place of.
    """

    split: str
    excluded: int
    exclude_file: str
    include_file: str = ''


def _file_name(word: str, split: str) -> str:
    return f'{word}_{re.sub("[^A-Za-z0-9.-]+", "_", split).strip("_")}.txt'


def _stems(samples: Sequence[Sample], folder: str) -> list[str]:
    """Names of images, or else of label files, without suffix."""
    names = []
    for sample in samples:
        path = sample.image or sample.mask or sample.annotation
        name = relative_to(path, folder)
        names.append(name.rpartition('.')[0] or name)
    return names


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text(
        ''.join(f'{line}\n' for line in lines), errors='surrogateescape'
    )


def write_lists(
    tree: Path,
    source: SplitSource,
    excluded: Sequence[Sample],
    folders: Iterable[str],
) -> SampleList | None:
    """Write the lists of a split.

    Args:
        tree: Folder to write them to.
        source: The split. If a list of its own names its samples, lines are
            those of that list.
        excluded: Samples that cannot be trained with.
        folders: Those that its images are in, or else its label files; names
            are relative to the folder that holds them all.

    Returns:
        What was written; None if nothing is excluded.
    """
    if not excluded:
        return None
    split = source.expected.split
    exclude_file = _file_name('exclude', split)
    lines = _lines(source)
    if not lines:
        _write(tree / exclude_file, _stems(excluded, common_folder(folders)))
        return SampleList(
            split=split, excluded=len(excluded), exclude_file=exclude_file
        )
    bad = {sample.index for sample in excluded}
    include_file = _file_name('include', split)
    _write(tree / exclude_file, (lines[index] for index in sorted(bad)))
    _write(
        tree / include_file,
        (line for index, line in enumerate(lines) if index not in bad),
    )
    return SampleList(
        split=split,
        excluded=len(excluded),
        exclude_file=exclude_file,
        include_file=include_file,
    )


def _lines(source: SplitSource) -> list[str]:
    """Lines of the list that names the samples; empty if there is none."""
    path = source.list_file
    if not path:
        return []
    lines = list_from_file(path, backend_args=source.backend_args)
    samples = list(source.samples())
    fits = len(lines) == len(samples) and all(
        line.strip().partition(' ')[0] in (sample.image or sample.annotation)
        for line, sample in zip(lines, samples)
    )
    return lines if fits else []
