"""Repair ids that are used twice, and the order of categories."""

import itertools
import json
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from ._coco_draft import CocoDraft

__all__ = [
    'drop_repeated_images',
    'fix_images',
    'number_annotations',
    'sort_categories',
]

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
    """Give annotations with the id of another one a new id.

    Args:
        draft: Is changed. The first keeps its id, new ones are larger than
            all that there are.
    """
    if 'COCO002' not in draft.rules:
        return
    ids = draft.file.annotations.id
    rows = np.flatnonzero(draft.alive)
    _, first = np.unique(ids[rows], return_index=True)
    again = np.setdiff1d(rows, rows[first], assume_unique=True)
    if not len(again):
        return
    if 'annotations' in draft.broken:
        # Theirs may be among those that would be new.
        draft.leave('COCO002', 'ids of some annotations cannot be read')
        return
    new_ids = _new_ids(ids)
    if new_ids is None:
        draft.leave('COCO002', 'there is no larger id')
        return
    for row, new in zip(again.tolist(), new_ids):
        draft.note(
            'COCO002',
            row,
            int(ids[row]),
            new,
            field='id',
            reason='no other annotation has it',
        )
        draft.replace(row, draft.get(row) | {'id': new})


def drop_repeated_images(draft: CocoDraft) -> None:
    """Remove images whose record is that of another one.

    Args:
        draft: Is changed.
    """
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
    """Repair images with the id or the file of another one.

    Args:
        draft: Is changed where it is certain to which image the annotations
            belong.
    """
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
            own,
            new,
            kind='images',
            field='id',
            reason='no annotation names the id',
        )
        draft.replace(row, record | {'id': new}, 'images')


def _free_id(draft: CocoDraft, new_ids: itertools.count) -> int:
    """The next id that was not given to an image before."""
    given = draft.given_ids
    new = next(each for each in new_ids if each not in given)
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
    """Bring categories into the order of the classes of the config.

    Args:
        draft: Is changed, if all names agree. Ids stay as they are, and
            categories that are no classes where they are.
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
