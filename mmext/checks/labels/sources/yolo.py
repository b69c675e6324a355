"""Splits whose samples have a label file each, in YOLO's form."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ....datasets import find_yolo_data, yolo_label_path, yolo_pictures
from ..expectations import Expectations
from ..facts import Orphan
from .folder import names_in
from .split_source import SplitSource
from .voc import split_of_pairs

# Text files beside labels that hold none.
_NO_LABELS = ('classes.txt', 'labels.txt', 'notes.txt')


def splits_of_yolo(
    path: str | Path,
    splits: Sequence[str],
    *,
    classes: Sequence[str] = (),
) -> list[SplitSource]:
    """Pictures and their label files, one split for each that is there.

    A text file beside the label files of a split that is of no picture, be
    it of another split, is an orphan.

    Args:
        path: See :func:`~mmext.datasets.find_yolo_data`.
        splits: Those to take, of ``'train'``, ``'val'`` and ``'test'``.
        classes: Names in the order of labels; empty for those of the data.

    Raises:
        FileNotFoundError: As ``find_yolo_data``.
        ValueError: As that; if there is none of the splits.
    """
    data = find_yolo_data(path, classes)
    found = [split for split in splits if split in data.splits]
    if not found:
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
    return [
        replace(
            split_of_pairs(
                pairs[split],
                Expectations(
                    split=split,
                    task='detection',
                    classes=data.names,
                    num_classes=len(data.names),
                ),
                kind='yolo',
                list_file=next(
                    map(str, filter(Path.is_file, data.splits[split])), ''
                ),
            ),
            orphans=partial(_orphans, pairs[split], known, split),
        )
        for split in found
    ]


def _orphans(
    pairs: Sequence[tuple[str, str]], known: set[str], split: str
) -> Iterator[Orphan]:
    """Files beside those of the samples that are of no split's."""
    for folder in sorted({os.path.dirname(label) for _, label in pairs}):
        for name in names_in(folder, ('.txt',))[0]:
            path = os.path.join(folder, name)
            if path not in known and name not in _NO_LABELS:
                yield Orphan(split=split, path=path, kind='annotation')
