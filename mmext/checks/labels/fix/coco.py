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
    MIN_POLYGON,
    NO_SEGMENTATION,
    POLYGONS,
    RLE,
    CocoFile,
    match_ids,
    polygon_error,
    read_coco,
)
from ..rules.registry import COCO, DET, PAIR, fixable
from ..sources.coco import image_rows, lacks_mask
from . import Change, FixedFile

COCO_RULES = fixable(COCO, DET, PAIR)
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
    if any(error.location in ('', *_KEYS) for error in file.errors):
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

    ``alive`` are the annotations and ``kept`` the images that are not removed,
    ``box`` has left, top, width and height as they are now, ``broken`` the
    kinds of records of which some cannot be read.
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
            error.location.partition('[')[0].partition('.')[0]
            for error in file.errors
        }

    def location(self, row: int, kind: str = 'annotations') -> str:
        """Where a record stands in the file as it was."""
        return f'{kind}[{getattr(self.file, kind).index[row]}]'

    def record(self, row: int, kind: str = 'annotations') -> dict[str, Any]:
        """A record as it is now."""
        return self.root[kind][getattr(self.file, kind).index[row]]

    def note(
        self, rule: str, location: str, was: Any, now: Any, count: int = 1
    ) -> None:
        """Say what was changed; None for what is not there."""
        was, now = (
            '' if value is None else json.dumps(value, ensure_ascii=False)
            for value in (was, now)
        )
        change = Change(
            rule=rule, location=location, was=was, now=now, count=count
        )
        self.changes.append(change)

    def set(
        self,
        rule: str,
        row: int,
        field: str,
        value: Any,
        kind: str = 'annotations',
    ) -> None:
        """Write a field of a record and say so, if the rule is chosen."""
        if rule not in self.rules:
            return
        record = self.record(row, kind)
        location = f'{self.location(row, kind)}.{field}'
        self.note(rule, location, record.get(field), value)
        record[field] = value

    def remove(self, rule: str, row: int, kind: str = 'annotations') -> None:
        """Take a record out and say so, if the rule is chosen."""
        if rule not in self.rules:
            return
        location = self.location(row, kind)
        self.note(rule, location, self.record(row, kind), None)
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
        if kind not in draft.broken and not missing.all():
            for row in np.flatnonzero(missing & draft.alive).tolist():
                draft.remove(rule, row)


def _remove_useless(draft: _Draft) -> None:
    """Remove annotations without an area, or without a mask that is loaded."""
    there = draft.file.annotations.has_bbox
    sides = box_limits.sides_of_coco(draft.box)
    flat = box_limits.lacks_area(sides)
    no_mask = np.zeros_like(there)
    if draft.expected.loads_masks:
        no_mask = lacks_mask(draft.file, draft.expected)
    for rule, rows in (
        ('DET001', there & ~box_limits.is_finite(sides)),
        ('DET002', there & flat),
        ('COCO016', no_mask),
    ):
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
    for rows in _groups(values, kept):
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
    sides = box_limits.sides_of_coco(draft.box[rows])
    size = sizes[images[rows]]
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
        of_box = was['bbox'][2] * was['bbox'][3]
        if old_area is not None and math.isclose(
            was['area'], old_area, **close
        ):
            if 'segmentation' in new:
                new['area'] = whole_if_equal(area_of(new['segmentation']))
        elif math.isclose(was['area'], of_box, **close):
            new['area'] = whole_if_equal(box[2] * box[3])
    for field, value in new.items():
        if value != was[field]:
            draft.set('DET005', row, field, value)
    draft.box[row] = box


def _fill_areas(draft: _Draft) -> None:
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
            draft.set('COCO011', row, 'area', whole_if_equal(area))


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
        location = f'{draft.location(lacking[0])}.iscrowd'
        draft.note('COCO014', location, None, 0, len(lacking))


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
        if 'images' in draft.broken:
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
        draft.location(rows[0], 'categories'),
        present,
        list(classes),
        len(rows),
    )


def clip_box(box: Sequence[float], width: float, height: float) -> list[float]:
    """The part of a box (left, top, width, height) that is in the image.

    Sides that are in the image stay as they are, and whole numbers stay whole.
    """
    left, wide = _clip_side(box[0], box[2], width)
    top, high = _clip_side(box[1], box[3], height)
    return [left, top, wide, high]


def _clip_side(begin: float, size: float, limit: float) -> tuple:
    if begin >= 0 and begin + size <= limit:
        return begin, size
    first = max(begin, 0)
    return first, min(begin + size, limit) - first


def clip_polygon(
    polygon: Sequence[float], width: float, height: float
) -> list[float]:
    """The part of ``x, y, x, y, ...`` that is in the image; may be empty.

    A polygon that the border divides stays one, whose parts edges along the
    border join.
    """
    points = list(zip(polygon[::2], polygon[1::2]))
    if all(0 <= x <= width and 0 <= y <= height for x, y in points):
        return list(polygon)
    for axis, sign, limit in (
        (0, -1, 0),
        (0, 1, width),
        (1, -1, 0),
        (1, 1, height),
    ):
        points = _cut(points, axis, sign, limit)
    if 2 * len(points) < MIN_POLYGON:
        return []
    return [number for point in points for number in point]


def _cut(
    points: list[tuple], axis: int, sign: int, limit: float
) -> list[tuple]:
    """What is on the inner side of a line (Sutherland and Hodgman)."""
    kept: list[tuple] = []
    for index, point in enumerate(points):
        before = points[index - 1]
        inside = sign * point[axis] <= sign * limit
        if inside != (sign * before[axis] <= sign * limit):
            kept.append(_crossing(before, point, axis, limit))
        if inside:
            kept.append(point)
    return kept


def _crossing(one: tuple, other: tuple, axis: int, limit: float) -> tuple:
    share = (limit - one[axis]) / (other[axis] - one[axis])
    across = one[1 - axis] + share * (other[1 - axis] - one[1 - axis])
    if isinstance(one[1 - axis], int):
        across = whole_if_equal(across)
    return (limit, across) if axis == 0 else (across, limit)


def whole_if_equal(number: float) -> float:
    """An int for a finite number without a fraction."""
    return int(number) if number == int(number) else number


def area_of(segmentation: object) -> float | None:
    """Area of polygons in pixels; None for what are not polygons."""
    if not isinstance(segmentation, list) or not segmentation:
        return None
    if polygon_error(segmentation):
        return None
    total = 0.0
    for polygon in segmentation:
        xs, ys = polygon[::2], polygon[1::2]
        # From the first point on, as differences of large numbers lose
        # digits.
        xs = [x - xs[0] for x in xs]
        twice = sum(
            xs[i - 1] * (ys[i] - ys[0]) - xs[i] * (ys[i - 1] - ys[0])
            for i in range(len(xs))
        )
        total += abs(twice) / 2
    return total


def may_change_size(
    noted: Sequence[float], stored: Sequence[int], fits: bool
) -> bool:
    """Whether a noted size can be made that of the image file.

    Not if the image seems to have been scaled, as its objects would have to be
    scaled, too, nor if an object fits the noted size alone (``fits``).
    """
    (wide, high), (width, height) = noted, stored
    if wide <= 0 or high <= 0:
        return True
    off = abs(wide * height - high * width)
    return fits and off > max(wide, high, width, height)
