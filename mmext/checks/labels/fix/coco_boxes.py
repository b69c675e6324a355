"""Repair annotations: remove those of no use, cut boxes, fill what lacks."""

import json
import math
from collections.abc import Sequence

import numpy as np

from ....datasets import box_limits
from ..readers.coco import POLYGONS
from ..sources.coco import lacks_mask
from .coco_draft import CocoDraft

_MIN_POINTS = 3


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
    if len(points) < _MIN_POINTS:
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
    if isinstance(one[1 - axis], int) and across == int(across):
        across = int(across)
    return (limit, across) if axis == 0 else (across, limit)


def area_of(segmentation: object) -> float | None:
    """Area of polygons in pixels; None for what are not polygons."""
    if not isinstance(segmentation, list) or not segmentation:
        return None
    total = 0.0
    for polygon in segmentation:
        if (
            not isinstance(polygon, list)
            or len(polygon) < 2 * _MIN_POINTS
            or len(polygon) % 2
            or not all(type(number) in (int, float) for number in polygon)
            or not all(map(math.isfinite, polygon))
        ):
            return None
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


def remove_dangling(draft: CocoDraft) -> None:
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
        rows = np.flatnonzero(missing & draft.alive)
        if rule not in draft.rules or not len(rows):
            continue
        if kind in draft.broken:
            draft.leave(rule, f'some of the {kind} cannot be read')
        elif missing.all():
            draft.leave(rule, 'no annotation would remain')
        else:
            for row in rows.tolist():
                draft.remove(rule, row, 'loaders drop it')


def remove_without_area(draft: CocoDraft) -> None:
    """Remove annotations whose box is not finite, or has no area."""
    there = draft.file.annotations.has_bbox & draft.alive
    sides = box_limits.sides_of_coco(draft.box)
    not_finite, empty = (
        ~box_limits.is_finite(sides),
        box_limits.lacks_area(sides),
    )
    for rule, rows, reason in (
        ('DET001', not_finite, 'the box is not finite'),
        ('DET002', empty, 'the box has no area; loaders drop it'),
    ):
        if rule in draft.rules:
            for row in np.flatnonzero(rows & there).tolist():
                draft.remove(rule, row, reason)


def remove_without_mask(draft: CocoDraft) -> None:
    """Remove annotations that lack the mask that the pipeline loads."""
    if 'COCO016' in draft.rules and draft.expected.loads_masks:
        lacks = lacks_mask(draft.file, draft.expected) & draft.alive
        for row in np.flatnonzero(lacks).tolist():
            draft.remove('COCO016', row, 'it has no mask; --select asks so')


def clip_boxes(
    draft: CocoDraft, sizes: np.ndarray, certain: np.ndarray
) -> None:
    """Cut boxes at the border of their image; remove those outside of it.

    ``sizes``: ``(N, 2)``, width and height of each image; ``certain``:
    ``(N,)``, bool, those whose size can be relied on.
    """
    rows = draft.image_row
    looked_at = draft.alive & (rows >= 0) & draft.file.annotations.has_bbox
    if not looked_at.any():
        return
    sides, size = box_limits.sides_of_coco(draft.box), sizes[rows]
    outside = box_limits.is_outside(sides, *size.T)
    known = (size > 0).all(axis=1)
    wrong = (
        looked_at & known & (outside | box_limits.is_beyond(sides, *size.T))
    )
    for row in np.flatnonzero(wrong).tolist():
        rule = 'DET004' if outside[row] else 'DET005'
        if rule not in draft.rules:
            continue
        if not certain[rows[row]]:
            draft.leave(
                rule, 'the size of the image is not certain', draft.place(row)
            )
        elif outside[row]:
            draft.remove(
                rule, row, 'it is outside of the image; loaders drop it'
            )
        else:
            _clip(draft, row, *sizes[rows[row]].tolist())


def _clip(draft: CocoDraft, row: int, width: float, height: float) -> None:
    width, height = (
        int(side) if side.is_integer() else side for side in (width, height)
    )
    was = draft.get(row)
    box = clip_box(was['bbox'], width, height)
    if min(box[2:]) < box_limits.MIN_SIZE:
        reason = 'less than a pixel of it is in the image'
        draft.leave('DET005', reason, draft.place(row))
        return
    new = was | {'bbox': box}
    segmentation = was.get('segmentation')
    old_area = area_of(segmentation)
    if old_area is not None:
        polygons = [clip_polygon(p, width, height) for p in segmentation]
        polygons = [polygon for polygon in polygons if polygon]
        if polygons:
            new['segmentation'] = polygons
    if 'area' in was:
        new['area'] = _new_area(was, new, old_area)
    changed = [key for key in new if new[key] != was[key]]
    for key in changed:
        draft.note(
            'DET005',
            row,
            was[key],
            new[key],
            field=key,
            reason=f'cut at the border of the image, {width} x {height}',
        )
    draft.replace(row, new)
    draft.box[row] = box


def _new_area(was: dict, new: dict, polygon_area: float | None) -> float:
    """Area anew, if it was that of the polygons or of the box."""
    area = was['area']
    box_area = was['bbox'][2] * was['bbox'][3]
    if not isinstance(area, int | float):
        return area
    if polygon_area is not None and math.isclose(
        area, polygon_area, rel_tol=1e-3, abs_tol=1
    ):
        if new['segmentation'] == was['segmentation']:
            return area
        area = area_of(new['segmentation'])
    elif math.isclose(area, box_area, rel_tol=1e-3, abs_tol=1):
        area = new['bbox'][2] * new['bbox'][3]
    else:
        return area
    return int(area) if area == int(area) else area


def fill_fields(draft: CocoDraft) -> None:
    """Write area and iscrowd into annotations that lack them."""
    if 'COCO011' in draft.rules:
        _fill_areas(draft)
    if 'COCO014' in draft.rules:
        _fill_iscrowd(draft)


def _fill_areas(draft: CocoDraft) -> None:
    notes = draft.file.annotations
    without = draft.alive & ~notes.has_area & ~notes.ignore
    for row in np.flatnonzero(without & notes.has_bbox).tolist():
        _fill_area(draft, row)
    for row in np.flatnonzero(draft.alive & ~notes.has_bbox).tolist():
        if not notes.ignore[row]:
            draft.leave('COCO011', 'it has no box', draft.place(row))


def _fill_iscrowd(draft: CocoDraft) -> None:
    notes = draft.file.annotations
    lacking = []
    for row in np.flatnonzero(draft.alive & ~notes.has_iscrowd).tolist():
        index = int(notes.index[row])
        if b'"iscrowd"' in draft.records.text('annotations', index):
            draft.leave('COCO014', 'its iscrowd is null', draft.place(row))
        else:
            draft.records.add_field('annotations', index, 'iscrowd', 0)
            lacking.append(row)
    if lacking:
        draft.note(
            'COCO014',
            lacking[0],
            None,
            0,
            field='iscrowd',
            count=len(lacking),
            reason='evaluations need it; the first of them is named',
        )


def _fill_area(draft: CocoDraft, row: int) -> None:
    kind = draft.file.annotations.segmentation_kind[row]
    record = draft.get(row)
    if kind == POLYGONS:
        area = area_of(record['segmentation'])
    else:
        area = record['bbox'][2] * record['bbox'][3] if kind == 0 else None
    if area is None or not area > 0:
        reason = 'its segmentation gives no area'
        draft.leave('COCO011', reason, draft.place(row))
        return
    area = int(area) if area == int(area) else area
    what = 'polygons' if kind == POLYGONS else 'box'
    draft.note(
        'COCO011',
        row,
        None,
        area,
        field='area',
        reason=f'the area of the {what}',
    )
    draft.replace(row, record | {'area': area})


def remove_repeated(draft: CocoDraft) -> None:
    """Remove annotations that are another one but for the id.

    The first that is as it was in the file is kept.
    """
    if 'DET010' not in draft.rules:
        return
    notes = draft.file.annotations
    for rows in _same_box(draft):
        groups: dict[str, list[int]] = {}
        for row in rows:
            record = draft.get(row)
            record.pop('id', None)
            key = json.dumps(record, sort_keys=True)
            groups.setdefault(key, []).append(row)
        for same in groups.values():
            index = notes.index
            first = min(
                same,
                key=lambda r: (
                    draft.records.edited('annotations', index[r]),
                    r,
                ),
            )
            for row in same:
                if row != first:
                    reason = f'{draft.place(first)} is the same but for its id'
                    draft.remove('DET010', row, reason)
        if len(groups) > 1:
            keys = _different(groups)
            draft.leave(
                'DET010',
                f'objects with the same box and class differ in {keys}',
                draft.place(rows[0]),
            )


def leave_nearly_repeated(draft: CocoDraft) -> None:
    """Say which boxes are those of others but for a pixel or two."""
    if 'DET010' not in draft.rules:
        return
    notes = draft.file.annotations
    rows = np.flatnonzero(draft.alive & notes.has_bbox & (notes.iscrowd == 0))
    sides = np.stack(box_limits.sides_of_coco(draft.box[rows]), axis=1)
    found = []
    for one, other in box_limits.close_pairs(
        notes.image_id[rows], sides[:, 0]
    ):
        near = box_limits.is_near(sides[one].T, sides[other].T)
        near &= (sides[one] != sides[other]).any(1)
        kinds = notes.category_id[rows]
        near &= kinds[one] == kinds[other]
        found += np.maximum(rows[one], rows[other])[near].tolist()
    for row in sorted(set(found)):
        reason = 'it is not known which of two boxes is the better one'
        draft.leave('DET010', reason, draft.place(row))


def _same_box(draft: CocoDraft) -> list[list[int]]:
    """Rows of one image, category and box, where there are several."""
    notes = draft.file.annotations
    rows = np.flatnonzero(draft.alive & notes.has_bbox)
    # 0.0 and -0.0 are the same side.
    box = (draft.box[rows] + 0.0).view(np.int64)
    key = np.column_stack((notes.image_id[rows], notes.category_id[rows], box))
    order = np.lexsort(key.T)
    ordered = key[order]
    again = np.zeros(len(rows) + 1, np.bool_)
    again[1:-1] = (ordered[1:] == ordered[:-1]).all(axis=1)
    groups: list[list[int]] = []
    for at in np.flatnonzero(again[:-1] | again[1:]).tolist():
        if again[at]:
            groups[-1].append(int(rows[order[at]]))
        else:
            groups.append([int(rows[order[at]])])
    return [sorted(group) for group in groups]


def _different(groups: dict[str, list[int]]) -> str:
    """Keys whose values are not the same in all records."""
    records = [json.loads(text) for text in groups]
    keys = {key for record in records for key in record}
    return ', '.join(
        key
        for key in sorted(keys)
        if any(
            record.get(key, KeyError) != records[0].get(key, KeyError)
            for record in records
        )
    )
