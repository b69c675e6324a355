"""Repair an annotation file in COCO's format."""

import itertools
import json
from collections import defaultdict
from collections.abc import Container, Hashable, Sequence

import msgspec
import numpy as np

from ....datasets import box_limits
from ..expectations import Expectations
from ..facts import ImageFacts, has_size, is_turned
from ..readers.coco import RLE, match_ids, read_coco
from ..rules.registry import fixable
from .change_log import FixedFile, Left
from .coco_boxes import (
    clip_boxes,
    fill_fields,
    leave_nearly_repeated,
    remove_dangling,
    remove_repeated,
    remove_without_area,
    remove_without_mask,
)
from .coco_draft import CocoDraft
from .json_records import JsonRecords

_MAX_ID = (1 << 63) - 1


def _groups(values: Sequence[Hashable]) -> list[list[int]]:
    """Rows of each value that occurs more than once."""
    rows = defaultdict(list)
    for row, value in enumerate(values):
        rows[value].append(row)
    return [group for group in rows.values() if len(group) > 1]


def _new_ids(ids: np.ndarray) -> itertools.count | None:
    """Numbers that no record has; None if there are none above them."""
    largest = max(int(ids.max(initial=0)), 0)
    if largest + len(ids) > _MAX_ID:
        return None
    return itertools.count(largest + 1)


def number_annotations(draft: CocoDraft) -> None:
    """Give each annotation an id of its own that is not 0, if it is evaluated.

    Of several with the same id, the first keeps it.
    """
    ids = draft.file.annotations.id
    rows = np.flatnonzero(draft.alive)
    wrong = {}
    if 'COCO015' in draft.rules and draft.expected.coco_metric:
        reason = 'pycocotools needs a number that is not 0'
        matched = match_ids(draft.file)[rows]
        for row in rows[(matched == 0) | np.isnan(matched)].tolist():
            wrong[row] = 'COCO015', reason
    if 'COCO002' in draft.rules:
        _, first = np.unique(ids[rows], return_index=True)
        reason = 'no other annotation has it'
        for row in np.setdiff1d(rows, rows[first], assume_unique=True):
            wrong[int(row)] = 'COCO002', reason
    if not wrong:
        return
    new_ids = _new_ids(ids)
    why = ''
    if 'annotations' in draft.broken:
        # Theirs may be among those that would be new.
        why = 'ids of some annotations cannot be read'
    elif new_ids is None:
        why = 'there is no larger id'
    if why:
        for rule in sorted({rule for rule, _ in wrong.values()}):
            draft.leave(rule, why)
        return
    for row, new in zip(sorted(wrong), new_ids):
        rule, reason = wrong[row]
        record = draft.get(row)
        old = record.get('id')
        draft.note(rule, row, old, new, field='id', reason=reason)
        draft.replace(row, record | {'id': new})


def drop_repeated_images(draft: CocoDraft) -> None:
    """Remove images whose record is that of another one."""
    if 'COCO003' not in draft.rules:
        return
    for rows in _groups(draft.file.images.id.tolist()):
        texts: dict[str, int] = {}
        for row in rows:
            text = json.dumps(draft.get(row, 'images'), sort_keys=True)
            first = texts.setdefault(text, row)
            if first != row:
                reason = f'the same as {draft.place(first, "images")}'
                draft.remove('COCO003', row, reason, 'images')


def fix_images(draft: CocoDraft) -> None:
    """Repair images with the id or the file of another one."""
    images = draft.file.images
    wanted = draft.file.annotations.image_id[draft.alive]
    used = set(np.unique(wanted).tolist())
    if 'annotations' in draft.broken:
        # One that cannot be read may belong to any image.
        used.update(images.id.tolist())
    for rule, values, fix in (
        ('COCO003', images.id.tolist(), _fix_image_id),
        ('COCO004', images.file_name, _fix_file_name),
    ):
        for group in _groups(values):
            rows = [row for row in group if row not in draft.gone]
            if rule not in draft.rules or len(rows) < 2:
                continue
            if 'images' in draft.broken:
                draft.leave(rule, 'some of the images cannot be read')
            else:
                fix(draft, rows, used)


def _fix_image_id(draft: CocoDraft, rows: list[int], used: set[int]) -> None:
    own = int(draft.file.images.id[rows[0]])
    new_ids = _new_ids(
        np.concatenate((draft.file.images.id, draft.file.annotations.image_id))
    )
    if own in used or new_ids is None:
        draft.leave(
            'COCO003',
            'to which of the images the annotations belong is unknown',
            draft.place(rows[0], 'images'),
        )
        return
    for row in rows[1:]:
        record = draft.get(row, 'images')
        new = _free_id(draft, new_ids)
        draft.note(
            'COCO003',
            row,
            record['id'],
            new,
            kind='images',
            field='id',
            reason='no annotation names the id',
        )
        draft.replace(row, record | {'id': new}, 'images')


def _free_id(draft: CocoDraft, new_ids: itertools.count) -> int:
    """The next id that was not given to an image before."""
    given = draft.given_ids
    new = next(new_id for new_id in new_ids if new_id not in given)
    given.add(new)
    return new


def _fix_file_name(draft: CocoDraft, rows: list[int], used: set[int]) -> None:
    """Keep the image that has the annotations."""
    ids = draft.file.images.id
    with_objects = [row for row in rows if int(ids[row]) in used]
    if len(with_objects) > 1:
        draft.leave(
            'COCO004',
            'several of the images have annotations; which are right is '
            'unknown',
            draft.place(rows[0], 'images'),
        )
        return
    kept = (with_objects or rows)[:1]
    for row in rows:
        if row not in kept:
            draft.remove(
                'COCO004',
                row,
                f'{draft.place(kept[0], "images")} has the same file, and '
                'this one has no annotation',
                'images',
            )


def sort_categories(draft: CocoDraft) -> None:
    """Put categories in the order of the classes, if all names agree.

    Ids stay as they are, and categories that are no classes where they are.
    """
    names = draft.file.categories.name
    classes = draft.expected.classes
    rows = [row for row, name in enumerate(names) if name in classes]
    present = [names[row] for row in rows]
    if 'COCO008' not in draft.rules or present == list(classes):
        return
    if len(present) != len(classes) or set(present) != set(classes):
        return
    if 'categories' in draft.broken:
        draft.leave('COCO008', 'some of the categories cannot be read')
        return
    by_name = {names[row]: draft.get(row, 'categories') for row in rows}
    for row, name in zip(rows, classes):
        draft.replace(row, by_name[name], 'categories')
    draft.note(
        'COCO008',
        rows[0],
        present,
        list(classes),
        kind='categories',
        count=len(rows),
        reason='labels are numbered in the order of the file; each category '
        'keeps its id and its objects',
    )


class NotedSize(msgspec.Struct, frozen=True):
    """A size that an annotation notes, and that of the image file.

    Attributes:
        noted: Width and height; 0 for what is not noted.
        stored: Width and height of the file, as stored.
    """

    noted: tuple[float, float]
    stored: tuple[int, int]


def why_size_stays(size: NotedSize, fits: bool) -> str:
    """Why a size is not written anew, though it differs; empty if it can be.

    Objects ``fits`` if each that fits the size as noted fits that of the file.
    """
    (wide, high), (width, height) = size.noted, size.stored
    if wide <= 0 or high <= 0:
        return ''
    if abs(wide * height - high * width) <= max(wide, high, width, height):
        return (
            'the image seems to have been scaled, and its objects would have '
            'to be scaled, too'
        )
    if not fits:
        return 'objects fit the size that is noted and not that of the file'
    return ''


def fix_sizes(
    draft: CocoDraft, images: Sequence[ImageFacts | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Correct noted sizes; all of them, ``(N, 2)``, and which are certain."""
    noted = np.column_stack(
        (draft.file.images.width, draft.file.images.height)
    )
    noted = np.trunc(np.nan_to_num(noted, posinf=0, neginf=0))
    if not len(images) or not len(noted):
        return noted, (noted > 0).all(axis=1)
    stored = np.array(
        [
            (image.width, image.height) if has_size(image) else (0, 0)
            for image in images
        ],
        np.float64,
    ).reshape(-1, 2)
    turned = np.array(
        [has_size(image) and is_turned(image) for image in images],
        np.bool_,
    )
    known = stored.all(axis=1) & ~turned
    other = known & (noted != stored).any(axis=1)
    sizes = np.where(known[:, None], stored, noted)
    certain = (sizes > 0).all(axis=1) & ~turned
    fits = _fits(draft, noted, stored)
    for row in np.flatnonzero(other).tolist():
        size = NotedSize(
            tuple(noted[row].tolist()),
            tuple(int(side) for side in stored[row]),
        )
        why = why_size_stays(size, bool(fits[row]))
        if why or 'PAIR004' not in draft.rules:
            certain[row] = False
            if 'PAIR004' in draft.rules:
                draft.leave('PAIR004', why, draft.place(row, 'images'))
            continue
        _write_size(draft, row, size)
    return sizes, certain


def _fits(
    draft: CocoDraft, noted: np.ndarray, stored: np.ndarray
) -> np.ndarray:
    """Images whose objects fit the one size as well as the other."""
    fine = np.ones(len(noted), np.bool_)
    rows = draft.image_row
    looked_at = draft.alive & (rows >= 0)
    ends = draft.box[:, :2] + draft.box[:, 2:]
    fits_noted = (ends <= noted[rows] + box_limits.BORDER_TOLERANCE).all(
        axis=1
    )
    fits_stored = (ends <= stored[rows] + box_limits.BORDER_TOLERANCE).all(
        axis=1
    )
    # The mask has the size that was noted.
    has_rle = draft.file.annotations.segmentation_kind == RLE
    bad = looked_at & ((fits_noted & ~fits_stored) | has_rle)
    fine[rows[bad]] = False
    return fine


def _write_size(draft: CocoDraft, row: int, size: NotedSize) -> None:
    record = draft.get(row, 'images')
    width, height = size.stored
    draft.note(
        'PAIR004',
        row,
        {key: record.get(key) for key in ('width', 'height')},
        {'width': width, 'height': height},
        kind='images',
        reason='the size of the image file',
    )
    draft.replace(row, record | {'width': width, 'height': height}, 'images')


COCO_RULES = fixable('coco')


def fix_coco(
    content: bytes,
    expected: Expectations,
    images: Sequence[ImageFacts | None] = (),
    *,
    rules: Container[str] = COCO_RULES,
) -> FixedFile:
    """Repair an annotation file.

    Note:
        1 to 3 s for 150,000 annotations (68 MB); 10 s if NaN is among them,
        which is no JSON.
    """
    file = read_coco(content)
    keys = ['images', 'annotations', 'categories']
    if len(images) not in (0, len(file.images.id)):
        raise ValueError(
            f'images must have one element for each of the '
            f'{len(file.images.id)} images of the file, got {len(images)}'
        )
    if any(error.place in ('', *keys) for error in file.errors):
        return FixedFile(content=content)
    try:
        draft = CocoDraft(file, JsonRecords(content, keys), expected, rules)
        _repair(draft, images)
        new = draft.records.render()
    # Numbers of thousands of digits, and lists in thousands of lists.
    except (ValueError, RecursionError) as error:
        left = Left(rule='COCO001', reason=f'it cannot be edited: {error}')
        return FixedFile(content=content, left=(left,))
    gone = {draft.place(row, 'images') for row in draft.gone}
    changes = (
        change
        for change in draft.changes
        if change.rule != 'PAIR004' or change.place not in gone
    )
    return FixedFile(
        content=new,
        changes=tuple(changes),
        left=tuple(draft.left),
    )


def _repair(draft: CocoDraft, images: Sequence[ImageFacts | None]) -> None:
    """All repairs; one of a second run would find nothing to do."""
    remove_dangling(draft)
    remove_without_area(draft)
    remove_without_mask(draft)
    sizes, certain = fix_sizes(draft, images)
    drop_repeated_images(draft)
    clip_boxes(draft, sizes, certain & ~draft.shared_ids())
    fill_fields(draft)
    remove_repeated(draft)
    leave_nearly_repeated(draft)
    number_annotations(draft)
    fix_images(draft)
    sort_categories(draft)
