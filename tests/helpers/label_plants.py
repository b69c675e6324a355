"""One error at a time, put into a clean data set, and what must be found.

Each decorated function in ``label_plants_*.py`` takes a data set of
:mod:`helpers.label_sets`, spoils it in one way, and says which file is wrong,
where, and how much of it.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers.label_sets import DataSet


@dataclass(frozen=True)
class Planted:
    """What a check must say of a rule, in its one group.

    Attributes:
        file: Of the first example; empty if it is about no file.
        place: Of the first example.
        value: Of the first example.
        count: Of the group, over all files.
        files: Files of the group.
        findings: Findings of the group; None for as many as files, or 1.
    """

    file: str | Path = ''
    position: str = ''
    value: str = ''
    count: int = 1
    files: int = 1
    findings: int | None = None


@dataclass(frozen=True)
class Plant:
    """An error that can be put into a data set.

    Attributes:
        rule: That must find it.
        kind: Of clean data set, key of ``helpers.label_sets.CLEAN``.
        spoil: Puts it there.
    """

    rule: str
    kind: str
    spoil: Callable[[DataSet], Planted]

    @property
    def name(self) -> str:
        """For the id of a test."""
        return f'{self.rule}-{self.kind}-{self.spoil.__name__}'


_plants: list[Plant] = []


def all_plants() -> list[Plant]:
    """Every plant there is."""
    for family in ('arrays', 'boxes', 'coco', 'masks', 'panoptic', 'sets'):
        importlib.import_module(f'helpers.label_plants_{family}')
    return _plants


# (rule, other): why an error of `other` must come along with one of `rule`.
CONSEQUENCES = {
    ('COCO001', 'PAIR008'): 'a file that cannot be read has no samples',
}


def plant(rule: str, *kinds: str) -> Callable:
    """Make the decorated function a plant of a rule in kinds of data sets."""

    def decorate(spoil: Callable[[DataSet], Planted]) -> Callable:
        _plants.extend(Plant(rule, kind, spoil) for kind in kinds)
        return spoil

    return decorate
