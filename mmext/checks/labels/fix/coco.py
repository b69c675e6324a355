"""Fix an annotation file in COCO's format: parse, edit, dump."""

import codecs
import itertools
import json
import re
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np

from ..expectations import Expectations
from ..facts import ImageFacts, has_size, is_turned
from ..readers.coco import (
    NO_SEGMENTATION,
    CocoFile,
    match_ids,
    read_coco,
)
from ..rules.registry import RULES
from . import Change, FixedFile

_KEYS = 'images', 'annotations', 'categories'
_MAX_ID = (1 << 63) - 1


def fix_coco(
    content: bytes,
    expected: Expectations,
    images: Sequence[ImageFacts | None] = (),
    *,
    rules: Container[str] = RULES,
) -> FixedFile:
    """Fix an annotation file.

    A fixed file keeps the order of keys, the values of all numbers, the
    indentation of its first lines, and whether letters beyond ASCII are
    escaped; not each blank.

    Args:
        content: Bytes of the file.
        expected: Requirements of the training for the labels.
        images: Facts of the images of the file, in its order.
        rules: Ids of the rules whose findings are fixed. ``'PAIR004'`` is for
            files in which the sizes of all images are exchanged.

    Note:
        6 s for 150,000 annotations (68 MB); 10 s with indentation.
    """
    start = []
    if content.startswith(codecs.BOM_UTF8) and 'COCO001' in rules:
        content = content.removeprefix(codecs.BOM_UTF8)
        start = [Change(rule='COCO001', was='byte-order mark')]
    file = read_coco(content)
    fixed = FixedFile(content=content, changes=tuple(start))
    if any(error.location in ('', *_KEYS) for error in file.errors):
        return fixed
    try:
        root = json.loads(content)
        draft = _Draft(root, file, rules)
        _fix_sizes(draft, images)
        _remove_boxes_without_area(draft)
        _fill_in(draft)
        _number_annotations(draft, expected)
        if not draft.changes:
            return fixed
        changes = (*start, *draft.changes)
        return FixedFile(content=draft.dump(content), changes=changes)
    # Numbers of hundreds or thousands of digits, lists in thousands of lists.
    except (ValueError, OverflowError, RecursionError):
        return fixed


class _Draft:
    """A file while it is fixed: its columns as read, its records as now."""

    def __init__(
        self, root: dict[str, Any], file: CocoFile, rules: Container[str]
    ):
        self.root = root
        self.file = file
        self.rules = rules
        # Annotations that are not removed.
        self.alive = np.ones(len(file.annotations.id), np.bool_)
        self.changes: list[Change] = []
        # Kinds of records of which some cannot be read.
        self.broken = {
            error.location.partition('[')[0].partition('.')[0]
            for error in file.errors
        }

    def records(
        self, rule: str, rows: np.ndarray, kind: str = 'annotations'
    ) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Row, location and record of some rows, if the rule is chosen."""
        if rule not in self.rules:
            return
        index = getattr(self.file, kind).index
        for row in np.flatnonzero(rows).tolist():
            at = int(index[row])
            yield row, f'{kind}[{at}]', self.root[kind][at]

    def note(
        self, rule: str, location: str, was: Any, now: Any, count: int = 1
    ) -> None:
        """Add a change; None stands for a missing field or record."""
        was, now = (
            '' if value is None else json.dumps(value, ensure_ascii=False)
            for value in (was, now)
        )
        self.changes.append(
            Change(rule=rule, location=location, was=was, now=now, count=count)
        )

    def dump(self, old: bytes) -> bytes:
        """The file as it is now, in the style in which the old one begins."""
        index = self.file.annotations.index
        gone = set(index[~self.alive].tolist())
        self.root['annotations'] = [
            record
            for index, record in enumerate(self.root['annotations'])
            if index not in gone
        ]
        text = old.decode()
        in_lines = re.match(r'\s*\{\s*\n(\s*)"', text)
        new = json.dumps(
            self.root,
            ensure_ascii=text.isascii(),
            indent=in_lines[1] if in_lines else None,
        )
        return (new + text[len(text.rstrip()) :]).encode()


def _fix_sizes(draft: _Draft, images: Sequence[ImageFacts | None]) -> None:
    """Write sizes that are missing, or exchanged, in the images of a file."""
    noted = draft.file.images
    missing = ~((noted.width > 0) & (noted.height > 0))
    for rule, rows in (('COCO013', missing), ('PAIR004', ~missing)):
        for row, location, record in draft.records(rule, rows, 'images'):
            image = images[row] if images else None
            if not has_size(image) or is_turned(image):
                continue
            size = {'width': image.width, 'height': image.height}
            was = {key: record.get(key) for key in size}
            if was != size:
                draft.note(rule, location, was, size)
                record.update(size)


def _remove_boxes_without_area(draft: _Draft) -> None:
    """Remove annotations of width or height 0, which the loader drops.

    Not those below 0: corners may be exchanged.
    """
    notes = draft.file.annotations
    finite = np.isfinite(notes.bbox).all(axis=1)
    flat = finite & (notes.bbox[:, 2:] == 0).any(axis=1)
    for rule, rows in (('DET001', notes.has_bbox & ~finite), ('DET002', flat)):
        for row, location, record in draft.records(rule, rows):
            draft.note(rule, location, record, None)
            draft.alive[row] = False


def _fill_in(draft: _Draft) -> None:
    """Write areas of boxes, and iscrowd, where they are missing."""
    notes = draft.file.annotations
    lacking = draft.alive & ~notes.ignore & ~notes.has_area & notes.has_bbox
    # An object with a mask has the area of the mask.
    lacking &= notes.segmentation_kind == NO_SEGMENTATION
    for _, location, record in draft.records('COCO011', lacking):
        area = record['area'] = record['bbox'][2] * record['bbox'][3]
        draft.note('COCO011', f'{location}.area', None, area)
    # It may be there, and null.
    lacking = [
        (location, record)
        for _, location, record in draft.records(
            'COCO014', draft.alive & ~notes.has_iscrowd
        )
        if 'iscrowd' not in record
    ]
    for _, record in lacking:
        record['iscrowd'] = 0
    if lacking:
        # The first of them is named.
        location = f'{lacking[0][0]}.iscrowd'
        draft.note('COCO014', location, None, 0, len(lacking))


def _number_annotations(draft: _Draft, expected: Expectations) -> None:
    """Give each annotation an id of its own that is not 0, if it is evaluated.

    Of several with the same id, the first keeps it.
    """
    ids = draft.file.annotations.id
    alive = np.flatnonzero(draft.alive)
    _, first = np.unique(ids[alive], return_index=True)
    again = np.ones(len(ids), np.bool_)
    again[alive[first]] = False
    wrong = {'COCO015': np.zeros(len(ids), np.bool_)}
    if expected.coco_metric:
        matched = match_ids(draft.file)
        wrong['COCO015'] = (matched == 0) | np.isnan(matched)
    wrong['COCO002'] = again & ~wrong['COCO015']
    largest = max(int(ids.max(initial=0)), 0)
    # Ids that cannot be read may be among those that would be new.
    if 'annotations' in draft.broken or largest + len(ids) > _MAX_ID:
        return
    new = itertools.count(largest + 1)
    for rule, rows in wrong.items():
        for _, location, record in draft.records(rule, rows & draft.alive):
            was, record['id'] = record['id'], next(new)
            draft.note(rule, f'{location}.id', was, record['id'])
