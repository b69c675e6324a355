"""Annotations that go, are cut, are filled."""

import json

import numpy as np
import pytest

from mmext.label_check import Expectations
from mmext.label_check.fix._coco_boxes import (
    clip_boxes,
    fill_fields,
    remove_dangling,
    remove_repeated,
    remove_without_area,
)
from mmext.label_check.fix._coco_draft import CocoDraft
from mmext.label_check.fix._json_records import JsonRecords
from mmext.label_check.readers.coco_reader import read_coco

RULES = (
    'COCO005',
    'COCO006',
    'COCO011',
    'DET001',
    'DET002',
    'DET004',
    'DET005',
    'DET010',
)
FINE = {'image_id': 1, 'category_id': 1, 'bbox': [1, 2, 10, 9]}
WITH_CROWD = {**FINE, 'area': 90, 'iscrowd': 0}


def draft_of(*notes, rules=RULES, **more) -> CocoDraft:
    content = {
        'images': [{'id': 1, 'file_name': 'a', 'width': 64, 'height': 48}],
        'annotations': [
            {'id': number, **note} for number, note in enumerate(notes)
        ],
        'categories': [{'id': 1, 'name': 'cat'}],
        **more,
    }
    text = json.dumps(content).encode()
    return CocoDraft(
        read_coco(text),
        JsonRecords(text, list(content)),
        Expectations(),
        rules,
    )


def notes_of(draft: CocoDraft) -> list[dict]:
    return json.loads(draft.records.render())['annotations']


def clip(draft: CocoDraft) -> None:
    clip_boxes(draft, np.array([[64.0, 48.0]]), np.array([True]))


def test_dangling():
    draft = draft_of(FINE, {**FINE, 'image_id': 9}, {**FINE, 'category_id': 9})
    remove_dangling(draft)
    assert [each['id'] for each in notes_of(draft)] == [0]
    assert [each.rule for each in draft.changes] == ['COCO005', 'COCO006']


def test_dangling_for_want_of_a_record():
    draft = draft_of(FINE, {**FINE, 'category_id': 9}, categories=[{'id': 9}])
    remove_dangling(draft)
    assert draft.changes == []
    assert draft.left[0].reason == 'some of the categories cannot be read'


def test_not_all_are_removed():
    draft = draft_of({**FINE, 'image_id': 9})
    remove_dangling(draft)
    assert draft.changes == []
    assert draft.left[0].reason == 'no annotation would remain'


@pytest.mark.parametrize(
    ('box', 'rule'),
    [
        ([1, 2, float('nan'), 4], 'DET001'),
        ([float('-inf'), 2, 3, 4], 'DET001'),
        ([1e308, 2, 1e308, 4], 'DET001'),
        ([1, 2, 0, 4], 'DET002'),
        ([1, 2, 3, -4], 'DET002'),
        ([1e17, 2, 1, 4], 'DET002'),
        ([1, 2, 0.1, 4], ''),
        (None, ''),
    ],
)
def test_without_area(box, rule):
    draft = draft_of(FINE, {**FINE, 'bbox': box})
    remove_without_area(draft)
    assert [each.rule for each in draft.changes] == ([rule] if rule else [])
    assert draft.alive.tolist() == [True, not rule]


@pytest.mark.parametrize(
    ('box', 'after'),
    [
        ([-1, -1, 66, 50], [-1, -1, 66, 50]),
        ([-2, 3, 20, 9], [0, 3, 18, 9]),
        ([50, 40, 16, 20], [50, 40, 14, 8]),
        ([64, 3, 20, 9], None),
        ([3, -9, 20, 9], None),
        ([-30, 3, 30.5, 9], [-30, 3, 30.5, 9]),
    ],
)
def test_clipped(box, after):
    draft = draft_of(FINE, {**FINE, 'bbox': box})
    clip(draft)
    boxes = [each['bbox'] for each in notes_of(draft)]
    assert boxes == [FINE['bbox'], *([] if after is None else [after])]
    if after is not None:
        assert draft.box[1].tolist() == after


def test_area_follows_the_box_if_it_was_the_area_of_the_box():
    box = [-10, 0, 20, 10]
    for area, after in ((200, 100), (200.4, 100), (77, 77), (None, None)):
        draft = draft_of({**FINE, 'bbox': box, 'area': area})
        clip(draft)
        assert notes_of(draft)[0]['area'] == after


def test_uncertain_sizes_are_not_used():
    draft = draft_of({**FINE, 'bbox': [-10, 0, 20, 10]})
    clip_boxes(draft, np.array([[64.0, 48.0]]), np.array([False]))
    assert draft.changes == []
    assert [each.rule for each in draft.left] == ['DET005']


def test_filled():
    triangle = {**FINE, 'segmentation': [[0, 0, 8, 0, 0, 8]]}
    broken = {**FINE, 'segmentation': [[0, 0]]}
    ignored = {**FINE, 'ignore': 1}
    draft = draft_of(WITH_CROWD, FINE, triangle, broken, ignored)
    fill_fields(draft)
    areas = [each.get('area') for each in notes_of(draft)]
    assert areas == [90, 90, 32, None, None]
    assert all(each['iscrowd'] == 0 for each in notes_of(draft))
    assert [each.reason for each in draft.left] == [
        'its segmentation gives no area'
    ]


def test_repeated():
    draft = draft_of(
        WITH_CROWD,
        {**WITH_CROWD, 'bbox': [1.0, 2.0, 10.0, 9.0]},
        {**WITH_CROWD, 'by': 'me'},
        WITH_CROWD,
        {**WITH_CROWD, 'bbox': [2, 2, 10, 9]},
    )
    remove_repeated(draft)
    assert [each['id'] for each in notes_of(draft)] == [0, 1, 2, 4]
    (left,) = draft.left
    assert left.place == 'annotations[0]'
    assert 'differ in' in left.reason


def test_a_box_that_was_cut_goes_before_one_that_was_not():
    beyond = {**WITH_CROWD, 'bbox': [-5, 2, 15, 9], 'area': 135}
    draft = draft_of(beyond, {**WITH_CROWD, 'bbox': [0, 2, 10, 9]})
    clip(draft)
    remove_repeated(draft)
    assert [each['id'] for each in notes_of(draft)] == [1]


def test_rules_that_are_not_chosen():
    draft = draft_of(
        FINE,
        FINE,
        {**FINE, 'bbox': [-9, 0, 20, 10]},
        {**FINE, 'bbox': [1, 1, 0, 0]},
        {**FINE, 'image_id': 9},
        rules=(),
    )
    remove_dangling(draft)
    remove_without_area(draft)
    clip(draft)
    fill_fields(draft)
    remove_repeated(draft)
    assert draft.changes == draft.left == []
