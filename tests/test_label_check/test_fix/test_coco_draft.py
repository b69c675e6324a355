"""A draft keeps columns, records and log together."""

import json

import numpy as np

from mmext.label_check import Expectations
from mmext.label_check.fix._coco_draft import CocoDraft, as_text
from mmext.label_check.fix._json_records import JsonRecords
from mmext.label_check.readers.coco_reader import read_coco

CONTENT = {
    'images': [
        {'id': 5, 'file_name': 'a'},
        {'id': 'x', 'file_name': 'b'},
        {'id': 5, 'file_name': 'c'},
        {'id': 6, 'file_name': 'd'},
    ],
    'annotations': [
        {'id': 1, 'image_id': 6, 'category_id': 1, 'bbox': [1, 2, 3, 4]},
        {'id': 2, 'image_id': 7, 'category_id': 1},
        {'id': 3, 'image_id': 5, 'category_id': 1},
    ],
    'categories': [],
}


def draft_of(content: dict) -> CocoDraft:
    text = json.dumps(content).encode()
    records = JsonRecords(text, list(content))
    return CocoDraft(read_coco(text), records, Expectations(), {'COCO002'})


def test_columns():
    draft = draft_of(CONTENT)
    assert draft.broken == {'images'}
    assert draft.image_row.tolist() == [2, -1, 0]
    assert draft.place(1, 'images') == 'images[2]'
    assert draft.get(1, 'images')['file_name'] == 'c'
    assert draft.shared_ids().tolist() == [True, True, False]
    assert np.isnan(draft.box[1]).all()


def test_removed_records_are_logged():
    draft = draft_of(CONTENT)
    draft.remove('COCO005', 1, 'why')
    assert draft.alive.tolist() == [True, False, True]
    draft.remove('COCO003', 1, 'why', 'images')
    assert draft.shared_ids().tolist() == [False, False, False]
    assert [each.place for each in draft.changes] == [
        'annotations[1]',
        'images[2]',
    ]
    left = json.loads(draft.records.render())
    assert [each['id'] for each in left['annotations']] == [1, 3]
    assert [each['file_name'] for each in left['images']] == ['a', 'b', 'd']


def test_notes():
    draft = draft_of(CONTENT)
    draft.note('COCO002', 0, 1, 4, reason='why', field='id', count=3)
    (change,) = draft.changes
    assert (change.place, change.was, change.now, change.count) == (
        'annotations[0].id',
        '1',
        '4',
        3,
    )
    draft.leave('COCO002', 'why', 'here')
    assert draft.left[0].place == 'here'
    assert as_text({'ä': float('inf')}) == '{"ä": Infinity}'


def test_no_images():
    draft = draft_of({**CONTENT, 'images': []})
    assert draft.image_row.tolist() == [-1, -1, -1]
    assert draft.shared_ids().tolist() == []
