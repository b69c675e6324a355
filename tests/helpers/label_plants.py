"""One error at a time, put into a clean data set, and what must be found.

Each function takes a data set of :mod:`label_sets`, spoils it in one way,
and says which file is wrong, where, and how much of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from label_sets import DataSet

__all__ = ['CONSEQUENCES', 'PLANTS', 'Plant', 'Planted', 'plant']


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
    place: str = ''
    value: str = ''
    count: int = 1
    files: int = 1
    findings: int | None = None


@dataclass(frozen=True)
class Plant:
    """An error that can be put into a data set.

    Attributes:
        rule: That must find it.
        kind: Of clean data set, key of ``label_sets.CLEAN``.
        spoil: Puts it there.
        settings: Of the check, besides those of the data set.
    """

    rule: str
    kind: str
    spoil: Callable[[DataSet], Planted]
    settings: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For the id of a test."""
        return f'{self.rule}-{self.kind}-{self.spoil.__name__}'


PLANTS: list[Plant] = []

# (rule, other): why an error of `other` must come along with one of `rule`.
CONSEQUENCES = {
    ('COCO001', 'PAIR008'): 'a file that cannot be read has no samples',
}


def plant(rule: str, *kinds: str, **settings) -> Callable:
    """Add the decorated function to ``PLANTS``.

    Args:
        rule: That must find what it does.
        kinds: Of data sets that it can spoil.
        settings: Of the check.
    """

    def decorate(spoil: Callable[[DataSet], Planted]) -> Callable:
        # pytest imports this folder once more, to look for doctests.
        known = {
            (each.rule, each.kind, each.spoil.__name__) for each in PLANTS
        }
        PLANTS.extend(
            Plant(rule, kind, spoil, settings)
            for kind in kinds
            if (rule, kind, spoil.__name__) not in known
        )
        return spoil

    return decorate
