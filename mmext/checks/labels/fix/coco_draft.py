"""An annotation file in COCO's format while it is repaired."""

import json
from collections.abc import Container
from typing import Any

import numpy as np

from ..expectations import Expectations
from ..readers.coco import CocoFile
from ..sources.coco import image_rows
from .change_log import Change, Left
from .json_records import JsonRecords


def as_text(value: Any) -> str:
    """JSON of a value, for the log."""
    return json.dumps(value, ensure_ascii=False)


class CocoDraft:
    """What is left of a file, and what was done to it.

    Attributes:
        alive: ``(M,)``, bool; annotations that are not removed.
        box: ``(M, 4)``, float64: left, top, width, height as they are now.
        image_row: ``(M,)``, int64; row of the image of each annotation, -1
            if there is none.
        changes: What was repaired.
        left: What was not, and why.
        broken: Kinds of records of which some cannot be read.
        gone: Rows of images that are removed.
        given_ids: Ids that images were given.
    """

    def __init__(
        self,
        file: CocoFile,
        records: JsonRecords,
        expected: Expectations,
        rules: Container[str],
    ):
        self.file = file
        self.records = records
        self.expected = expected
        self.rules = rules
        self.alive = np.ones(len(file.annotations.id), np.bool_)
        self.box = file.annotations.bbox.copy()
        self.image_row = image_rows(file)
        self.changes: list[Change] = []
        self.left: list[Left] = []
        self.gone: set[int] = set()
        self.given_ids: set[int] = set()
        self.broken = {
            error.place.partition('[')[0].partition('.')[0]
            for error in file.errors
        }

    def place(self, row: int, kind: str = 'annotations') -> str:
        """Where a record stands in the file."""
        return f'{kind}[{getattr(self.file, kind).index[row]}]'

    def get(self, row: int, kind: str = 'annotations') -> dict:
        """A record as it is now."""
        index = int(getattr(self.file, kind).index[row])
        return self.records.get(kind, index)

    def replace(self, row: int, new: dict, kind: str = 'annotations') -> None:
        """Put a record in the place of one."""
        index = int(getattr(self.file, kind).index[row])
        self.records.replace(kind, index, new)

    def remove(
        self, rule: str, row: int, reason: str, kind: str = 'annotations'
    ) -> None:
        """Take a record out, and say so."""
        self.note(
            rule, row, self.get(row, kind), None, reason=reason, kind=kind
        )
        if kind == 'annotations':
            self.alive[row] = False
        else:
            self.gone.add(row)
        index = int(getattr(self.file, kind).index[row])
        self.records.remove(kind, index)

    def note(
        self,
        rule: str,
        row: int,
        was: Any,
        now: Any,
        *,
        reason: str,
        kind: str = 'annotations',
        field: str = '',
        count: int = 1,
    ) -> None:
        """Say what was changed; ``now`` is None for what was removed."""
        self.changes.append(
            Change(
                rule=rule,
                place=self.place(row, kind) + (field and f'.{field}'),
                was='' if was is None else as_text(was),
                now='' if now is None else as_text(now),
                count=count,
                reason=reason,
            )
        )

    def shared_ids(self) -> np.ndarray:
        """``(N,)``, bool; images whose id another one has, too."""
        ids = self.file.images.id
        kept = np.ones(len(ids), np.bool_)
        kept[list(self.gone)] = False
        unique, at = np.unique(ids, return_inverse=True)
        at = at.reshape(-1)
        count = np.bincount(at[kept], minlength=len(unique))
        return count[at] > 1

    def leave(self, rule: str, reason: str, place: str = '') -> None:
        """Say what is not repaired."""
        self.left.append(Left(rule=rule, place=place, reason=reason))
