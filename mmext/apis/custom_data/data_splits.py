"""The splits of a folder of pictures and labels."""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...checks.labels.sources import CocoFile

SPLITS = ('train', 'val', 'test')
Tree = dict[str, list[str]]


@dataclass
class DataSplit:
    """The samples of a split.

    Attributes:
        names: Of the samples, as a list of the data set has them; of COCO
            the file names of the images.
        dataset: What a data set needs to read the split, besides
            :attr:`DataFolder.dataset`; paths are relative to the root.
        whole: ``dataset`` reads these samples and no others. Otherwise a
            list of the names has to be its ``ann_file``.
        coco: What COCO's annotation file of the split holds.
    """

    names: list[str]
    dataset: dict[str, Any] = field(default_factory=dict)
    whole: bool = True
    coco: CocoFile | None = None


@dataclass
class DataFolder:
    """A folder of pictures and labels.

    Attributes:
        form: ``'coco'``, ``'voc'``, ``'yolo'`` or ``'masks'``.
        root: What paths are relative to.
        classes: Names in the order of labels.
        splits: Of ``'train'``, ``'val'`` and ``'test'`` those that are
            there.
        dataset: What all data sets have.
        notes: What was found out that a user may not expect.
        masks: Objects have masks, too.
    """

    form: str
    root: Path
    classes: tuple[str, ...]
    splits: dict[str, DataSplit]
    dataset: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    masks: bool = False


def make_val_split(data: DataFolder, fraction: float, seed: int) -> None:
    """Take a part of the training samples for validation, if there is none.

    Args:
        data: Changed in place.
        fraction: Part of the samples, above 0 and below 1; at least one.
        seed: The same seed gives the same split of the same names.

    Raises:
        ValueError: If the fraction is not in that range, or there are fewer
            than two samples.
    """
    if not 0 < fraction < 1:
        raise ValueError(
            f'--val-fraction must be above 0 and below 1, got {fraction}'
        )
    if 'val' in data.splits:
        return
    train = data.splits['train']
    names = sorted(train.names)
    if len(names) < 2:
        raise ValueError(
            f'a split needs at least 2 pictures, got {len(names)} in '
            f'{data.root}'
        )
    number = min(max(round(len(names) * fraction), 1), len(names) - 1)
    chosen = set(random.Random(seed).sample(names, number))
    for split in ('train', 'val'):
        own = [n for n in names if (n in chosen) == (split == 'val')]
        data.splits[split] = replace(
            train, names=own, dataset=dict(train.dataset), whole=False
        )
    data.notes.append(
        f'no split for validation was found: {number} of {len(names)} '
        f'training pictures were chosen by the seed {seed}'
    )


def split_of(path: str) -> str:
    """Split that a path is named after; the last word counts."""
    words = re.findall('[a-z]+', path.lower())
    for word in reversed(words):
        for split in SPLITS:
            if word.startswith(split):
                return split
    return ''


def by_split(paths: Iterable[Any], what: str, root: Path) -> dict[str, list]:
    """Paths, or tuples of some, by split; those without one are to train."""
    results: dict[str, list] = {}
    for path in paths:
        results.setdefault(split_of(str(path)) or 'train', []).append(path)
    if 'train' not in results:
        raise ValueError(
            f'{what} in {root} must have a split for training, got '
            f'{sorted(results)} only'
        )
    return {split: results[split] for split in SPLITS if split in results}
