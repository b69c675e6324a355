"""Repair an annotation file in COCO's format: parse, edit, dump."""

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from ....datasets import box_limits
from ..expectations import Expectations
from ..facts import ImageFacts, has_size, is_turned
from ..readers.coco import (
    NO_SEGMENTATION,
    POLYGONS,
    RLE,
    CocoFile,
    match_ids,
    read_coco,
)
from ..rules.registry import fixable
from ..sources.coco import image_rows, lacks_mask
from .change_log import Change, FixedFile
from .geometry import (
    area_of,
    clip_box,
    clip_polygon,
    may_change_size,
    whole_if_equal,
)

COCO_RULES = fixable('coco')
_KEYS = 'images', 'annotations', 'categories'
_MAX_ID = (1 << 63) - 1
_BEGIN = re.compile(r'\s*\{(\s*)"(?:[^"\\]|\\.)*"\s*:(\s*)')


def fix_coco(
    content: bytes,
    expected: Expectations,
    images: Sequence[ImageFacts | None] = (),
    *,
    rules: Container[str] = COCO_RULES,
) -> FixedFile:
    """Repair an annotation file.

    What is repaired keeps the order of keys, the values of all numbers, the
    indentation, as the file begins, and whether letters beyond ASCII are
    escaped; not each blank.

    Note:
        6 s for 150,000 annotations (68 MB); 10 s with indentation.
    """
    file = read_coco(content)
    if len(images) not in (0, len(file.images.id)):
        raise ValueError(
            f'images must have one element for each of the '
            f'{len(file.images.id)} images of the file, got {len(images)}'
        )
    if any(error.place in ('', *_KEYS) for error in file.errors):
        return FixedFile(content=content)
    try:
        root = json.loads(content, object_pairs_hook=_object)
        draft = _Draft(root, file, expected, rules)
        _repair(draft, images or [None] * len(file.images.id))
        new = draft.dump(content) if draft.changes else content
    # Numbers of hundreds or thousands of digits, lists in thousands of lists.
    except (ValueError, OverflowError, RecursionError) as error:
        problem = f'it cannot be edited: {error}'
        return FixedFile(content=content, problem=problem)
    return FixedFile(content=new, changes=tuple(draft.changes))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError where a value would be lost."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f'the key {twice!r} occurs twice in an object')
    return values


def _repair(draft: '_Draft', images: Sequence[ImageFacts | None]) -> None:
    """All repairs; one of a second run would find nothing to do."""
    _remove_dangling(draft)
    _remove_useless(draft)
    sizes, certain = _fix_sizes(draft, images)
    images_by_id = draft.file.images.id.tolist()
    _remove_equal(draft, 'COCO003', 'images', images_by_id)
    _clip_boxes(draft, sizes, certain)
    _fill_areas(draft)
    _fill_iscrowd(draft)
    notes = draft.file.annotations
    boxes = zip(
        notes.image_id.tolist(),
        notes.category_id.tolist(),
        map(tuple, draft.box.tolist()),
    )
    _remove_equal(draft, 'DET010', 'annotations', boxes)
    _number_annotations(draft)
    _fix_images(draft)
    _sort_categories(draft)


class _Draft:
    """A file while it is repaired: its columns as read, its records as now.

    Attributes:
        alive: ``(M,)``, bool; annotations that are not removed.
        kept: ``(N,)``, bool; images that are not removed.
        box: ``(M, 4)``, float64: left, top, width, height as they are now.
        image_row: ``(M,)``, int64; row of the image of each annotation, -1
            if there is none.
        broken: Kinds of records of which some cannot be read.
    """

    def __init__(
        self,
        root: dict[str, Any],
        file: CocoFile,
        expected: Expectations,
        rules: Container[str],
    ):
        self.root = root
        self.file = file
        self.expected = expected
        self.rules = rules
        self.alive = np.ones(len(file.annotations.id), np.bool_)
        self.kept = np.ones(len(file.images.id), np.bool_)
        self.box = file.annotations.bbox.copy()
        self.image_row = image_rows(file)
        self.changes: list[Change] = []
        self.broken = {
            error.place.partition('[')[0].partition('.')[0]
            for error in file.errors
        }

    def _index(self, row: int, kind: str) -> int:
        return int(getattr(self.file, kind).index[row])

    def place(self, row: int, kind: str = 'annotations') -> str:
        """Where a record stands in the file as it was."""
        return f'{kind}[{self._index(row, kind)}]'

    def record(self, row: int, kind: str = 'annotations') -> dict[str, Any]:
        """A record as it is now."""
        return self.root[kind][self._index(row, kind)]

    def note(
        self,
        rule: str,
        place: str,
        was: Any,
        now: Any,
        count: int = 1,
    ) -> None:
        """Say what was changed; None for what is not there."""
        was, now = (
            '' if value is None else json.dumps(value, ensure_ascii=False)
            for value in (was, now)
        )
        self.changes.append(
            Change(
                rule=rule,
                place=place,
                was=was,
                now=now,
                count=count,
            )
        )

    def set(
        self,
        rule: str,
        row: int,
        field: str,
        value: Any,
        kind: str = 'annotations',
    ) -> None:
        """Write a field of a record, and say so."""
        record = self.record(row, kind)
        place = f'{self.place(row, kind)}.{field}'
        self.note(rule, place, record.get(field), value)
        record[field] = value

    def remove(self, rule: str, row: int, kind: str = 'annotations') -> None:
        """Take a record out, and say so."""
        place = self.place(row, kind)
        self.note(rule, place, self.record(row, kind), None)
        (self.kept if kind == 'images' else self.alive)[row] = False

    def dump(self, old: bytes) -> bytes:
        """The file as it is now, in the style in which the old one begins."""
        for kind, kept in (('images', self.kept), ('annotations', self.alive)):
            gone = set(getattr(self.file, kind).index[~kept].tolist())
            self.root[kind] = [
                record
                for index, record in enumerate(self.root[kind])
                if index not in gone
            ]
        text = old.decode()
        begin, blank = _BEGIN.match(text).groups()
        _, in_lines, indent = begin.rpartition('\n')
        colon = ': ' if blank else ':'
        comma = ', ' if blank and not in_lines else ','
        new = json.dumps(
            self.root,
            ensure_ascii=text.isascii(),
            indent=indent if in_lines else None,
            separators=(comma, colon),
        )
        return (new + text[len(text.rstrip()) :]).encode()


def _remove_dangling(draft: _Draft) -> None:
    """Remove annotations of images and categories that are not there.

    None is removed if the record that is missing may be one that cannot be
    read, or if no annotation would remain.
    """
    notes = draft.file.annotations
    known = draft.file.categories.id
    for rule, kind, missing in (
        ('COCO005', 'images', draft.image_row < 0),
        ('COCO006', 'categories', ~np.isin(notes.category_id, known)),
    ):
        is_certain = kind not in draft.broken and not missing.all()
        if rule in draft.rules and is_certain:
            for row in np.flatnonzero(missing & draft.alive).tolist():
                draft.remove(rule, row)


def _remove_useless(draft: _Draft) -> None:
    """Remove annotations without an area, or without a mask that is loaded."""
    there = draft.file.annotations.has_bbox
    sides = box_limits.sides_of_coco(draft.box)
    flat = box_limits.lacks_area(sides)
    no_mask = np.zeros_like(there)
    if 'COCO016' in draft.rules and draft.expected.loads_masks:
        no_mask = lacks_mask(draft.file, draft.expected)
    for rule, rows in (
        ('DET001', there & ~box_limits.is_finite(sides)),
        ('DET002', there & flat),
        ('COCO016', no_mask),
    ):
        if rule in draft.rules:
            for row in np.flatnonzero(rows & draft.alive).tolist():
                draft.remove(rule, row)


def _fix_sizes(
    draft: _Draft, images: Sequence[ImageFacts | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Correct noted sizes; all of them, ``(N, 2)``, and which are certain."""
    noted = np.column_stack(
        (draft.file.images.width, draft.file.images.height)
    )
    noted = np.trunc(np.nan_to_num(noted, posinf=0, neginf=0))
    stored = np.zeros_like(noted)
    turned = np.zeros(len(noted), np.bool_)
    for row, image in enumerate(images):
        if has_size(image):
            stored[row] = image.width, image.height
            turned[row] = is_turned(image)
    known = stored.all(axis=1) & ~turned
    sizes = np.where(known[:, None], stored, noted)
    certain = (sizes > 0).all(axis=1) & ~turned
    fits = _fits(draft, noted, stored)
    for row in np.flatnonzero(known & (noted != stored).any(axis=1)).tolist():
        size = tuple(map(int, stored[row].tolist()))
        certain[row] = 'PAIR004' in draft.rules and may_change_size(
            noted[row].tolist(), size, bool(fits[row])
        )
        for field, side in zip(('width', 'height'), size):
            if certain[row] and draft.record(row, 'images').get(field) != side:
                draft.set('PAIR004', row, field, side, 'images')
    return sizes, certain


def _fits(draft: _Draft, noted: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Images whose objects fit the one size as well as the other."""
    rows = np.flatnonzero(draft.alive & (draft.image_row >= 0))
    images = draft.image_row[rows]
    ends = draft.box[rows, :2] + draft.box[rows, 2:]
    fits_noted, fits_stored = (
        (ends <= size[images] + box_limits.BORDER_TOLERANCE).all(axis=1)
        for size in (noted, stored)
    )
    # The mask has the size that was noted.
    has_rle = draft.file.annotations.segmentation_kind[rows] == RLE
    fine = np.ones(len(noted), np.bool_)
    fine[images[(fits_noted & ~fits_stored) | has_rle]] = False
    return fine


def _groups(
    values: Iterable[Hashable], kept: Sequence[bool]
) -> list[list[int]]:
    """Kept rows of each value that several of them have."""
    rows = defaultdict(list)
    for row, value in enumerate(values):
        if kept[row]:
            rows[value].append(row)
    return [group for group in rows.values() if len(group) > 1]


def _remove_equal(
    draft: _Draft, rule: str, kind: str, values: Iterable[Hashable]
) -> None:
    """Of records with the same value, remove those that equal another one.

    But for the ids of annotations.
    """
    kept = draft.kept if kind == 'images' else draft.alive
    for rows in _groups(values, kept) if rule in draft.rules else ():
        seen: set[str] = set()
        for row in rows:
            record = draft.record(row, kind)
            if kind == 'annotations':
                record = record | {'id': None}
            text = json.dumps(record, sort_keys=True)
            if text in seen:
                draft.remove(rule, row, kind)
            seen.add(text)


def _clip_boxes(draft: _Draft, sizes: np.ndarray, certain: np.ndarray) -> None:
    """Cut boxes at the border of their image; remove those outside of it."""
    ids = draft.file.images.id
    unique, count = np.unique(ids[draft.kept], return_counts=True)
    # Which of the images it is in is unknown.
    certain = certain & ~np.isin(ids, unique[count > 1])
    images = draft.image_row
    rows = np.flatnonzero(
        draft.alive & (images >= 0) & draft.file.annotations.has_bbox
    )
    sides, size = (
        box_limits.sides_of_coco(draft.box[rows]),
        sizes[images[rows]],
    )
    outside = box_limits.is_outside(sides, *size.T)
    wrong = outside | box_limits.is_beyond(sides, *size.T)
    wrong &= (size > 0).all(axis=1)
    for row, is_outside in zip(rows[wrong].tolist(), outside[wrong].tolist()):
        rule = 'DET004' if is_outside else 'DET005'
        if rule not in draft.rules or not certain[images[row]]:
            continue
        if is_outside:
            draft.remove(rule, row)
        else:
            _clip(draft, row, *map(int, sizes[images[row]].tolist()))


def _clip(draft: _Draft, row: int, width: int, height: int) -> None:
    was = draft.record(row)
    box = clip_box(was['bbox'], width, height)
    if min(box[2:]) < box_limits.MIN_SIZE:
        return
    new = {'bbox': box}
    old_area = area_of(was.get('segmentation'))
    if old_area is not None:
        polygons = [
            clip_polygon(polygon, width, height)
            for polygon in was['segmentation']
        ]
        new['segmentation'] = [polygon for polygon in polygons if polygon]
        if new['segmentation'] in ([], was['segmentation']):
            del new['segmentation']
    if isinstance(was.get('area'), int | float):
        # Anew, if it was that of the polygons or of the box.
        close = {'rel_tol': 1e-3, 'abs_tol': 1}
        if old_area is not None and math.isclose(
            was['area'], old_area, **close
        ):
            if 'segmentation' in new:
                new['area'] = whole_if_equal(area_of(new['segmentation']))
        elif math.isclose(
            was['area'], was['bbox'][2] * was['bbox'][3], **close
        ):
            new['area'] = whole_if_equal(box[2] * box[3])
    for field, value in new.items():
        if value != was[field]:
            draft.set('DET005', row, field, value)
    draft.box[row] = box


def _fill_areas(draft: _Draft) -> None:
    if 'COCO011' not in draft.rules:
        return
    notes = draft.file.annotations
    lacking = draft.alive & ~notes.ignore & ~notes.has_area & notes.has_bbox
    for row in np.flatnonzero(lacking).tolist():
        record = draft.record(row)
        area = None
        if notes.segmentation_kind[row] == POLYGONS:
            area = area_of(record['segmentation'])
        elif notes.segmentation_kind[row] == NO_SEGMENTATION:
            area = record['bbox'][2] * record['bbox'][3]
        if area is not None and 0 < area < math.inf:
            area = whole_if_equal(area)
            draft.set('COCO011', row, 'area', area)


def _fill_iscrowd(draft: _Draft) -> None:
    if 'COCO014' not in draft.rules:
        return
    lacking = []
    rows = draft.alive & ~draft.file.annotations.has_iscrowd
    for row in np.flatnonzero(rows).tolist():
        # It may be there, and null.
        if 'iscrowd' not in draft.record(row):
            draft.record(row)['iscrowd'] = 0
            lacking.append(row)
    if lacking:
        # The first of them is named.
        place = f'{draft.place(lacking[0])}.iscrowd'
        draft.note('COCO014', place, None, 0, len(lacking))


def _new_ids(ids: np.ndarray) -> itertools.count | None:
    """Numbers that no record has; None if there are none above them."""
    largest = max(int(ids.max(initial=0)), 0)
    if largest + len(ids) > _MAX_ID:
        return None
    return itertools.count(largest + 1)


def _number_annotations(draft: _Draft) -> None:
    """Give each annotation an id of its own that is not 0, if it is evaluated.

    Of several with the same id, the first keeps it.
    """
    ids = draft.file.annotations.id
    rows = np.flatnonzero(draft.alive)
    wrong = {}
    if 'COCO015' in draft.rules and draft.expected.coco_metric:
        matched = match_ids(draft.file)[rows]
        for row in rows[(matched == 0) | np.isnan(matched)].tolist():
            wrong[row] = 'COCO015'
    if 'COCO002' in draft.rules:
        _, first = np.unique(ids[rows], return_index=True)
        for row in np.setdiff1d(rows, rows[first], assume_unique=True):
            wrong[int(row)] = 'COCO002'
    new_ids = _new_ids(ids)
    # Ids that cannot be read may be among those that would be new.
    if 'annotations' in draft.broken or new_ids is None:
        return
    for row, new in zip(sorted(wrong), new_ids):
        draft.set(wrong[row], row, 'id', new)


def _fix_images(draft: _Draft) -> None:
    """Repair images with the id or the file of another one."""
    images, notes = draft.file.images, draft.file.annotations
    used = set(notes.image_id[draft.alive].tolist())
    if 'annotations' in draft.broken:
        # One that cannot be read may belong to any image.
        used.update(images.id.tolist())
    new_ids = _new_ids(np.concatenate((images.id, notes.image_id)))
    for rule, values in (
        ('COCO003', images.id.tolist()),
        ('COCO004', images.file_name),
    ):
        if rule not in draft.rules or 'images' in draft.broken:
            continue
        for rows in _groups(values, draft.kept):
            # Those that have annotations.
            needed = [row for row in rows if int(images.id[row]) in used]
            if rule == 'COCO003' and not needed and new_ids is not None:
                for row, new in zip(rows[1:], new_ids):
                    draft.set(rule, row, 'id', new, 'images')
            if rule == 'COCO004' and len(needed) <= 1:
                (kept,) = needed or rows[:1]
                for row in rows:
                    if row != kept:
                        draft.remove(rule, row, 'images')


def _sort_categories(draft: _Draft) -> None:
    """Put categories in the order of the classes, if all names agree.

    Ids stay as they are, and categories that are no classes where they are.
    """
    names = draft.file.categories.name
    classes = draft.expected.classes
    rows = [row for row, name in enumerate(names) if name in classes]
    present = [names[row] for row in rows]
    if 'COCO008' not in draft.rules or present == list(classes):
        return
    if sorted(present) != sorted(classes) or 'categories' in draft.broken:
        return
    records = {names[row]: draft.record(row, 'categories') for row in rows}
    for row, name in zip(rows, classes):
        index = draft.file.categories.index[row]
        draft.root['categories'][index] = records[name]
    draft.note(
        'COCO008',
        draft.place(rows[0], 'categories'),
        present,
        list(classes),
        len(rows),
    )
