"""Ids become unique, and the records that they name stay the same."""

import json

import pytest

from mmext.label_check import Expectations
from mmext.label_check.fix._coco_draft import CocoDraft
from mmext.label_check.fix._coco_ids import (
    drop_repeated_images,
    fix_images,
    number_annotations,
    sort_categories,
)
from mmext.label_check.fix._json_records import JsonRecords
from mmext.label_check.readers.coco_reader import read_coco

RULES = ('COCO002', 'COCO003', 'COCO004', 'COCO008')
LARGEST = (1 << 63) - 1


def draft_of(images=(), notes=(), kinds=(), classes=(), rules=RULES):
    content = {
        'images': [
            {'id': number, 'file_name': name} for number, name in images
        ],
        'annotations': [
            {'id': number, 'image_id': image, 'category_id': 1}
            for number, image in notes
        ],
        'categories': [{'id': number, 'name': name} for number, name in kinds],
    }
    text = json.dumps(content).encode()
    return CocoDraft(
        read_coco(text),
        JsonRecords(text, list(content)),
        Expectations(classes=tuple(classes)),
        rules,
    )


def column(draft, kind: str, key: str) -> list:
    records = json.loads(draft.records.render())[kind]
    return [each[key] for each in records]


def test_annotations_get_new_ids():
    draft = draft_of(notes=[(3, 1), (5, 1), (3, 2), (3, 2), (-1, 1)])
    number_annotations(draft)
    assert column(draft, 'annotations', 'id') == [3, 5, 6, 7, -1]
    assert column(draft, 'annotations', 'image_id') == [1, 1, 2, 2, 1]


def test_ids_of_removed_annotations_are_free():
    draft = draft_of(notes=[(3, 1), (3, 1)])
    draft.remove('COCO005', 0, 'why')
    number_annotations(draft)
    assert column(draft, 'annotations', 'id') == [3]
    assert len(draft.changes) == 1


def test_no_larger_id():
    draft = draft_of(notes=[(LARGEST, 1), (LARGEST, 1)])
    number_annotations(draft)
    assert draft.changes == []
    assert draft.left[0].reason == 'there is no larger id'


def test_equal_images_become_one():
    draft = draft_of([(1, 'a'), (1, 'a'), (1, 'a'), (2, 'b')], [(7, 1)])
    drop_repeated_images(draft)
    fix_images(draft)
    assert column(draft, 'images', 'id') == [1, 2]
    assert draft.left == []


def test_images_that_nothing_names_get_new_ids():
    draft = draft_of([(1, 'a'), (1, 'b'), (2, 'c'), (2, 'd')], [(7, 9)])
    fix_images(draft)
    assert column(draft, 'images', 'id') == [1, 10, 2, 11]
    assert column(draft, 'images', 'file_name') == ['a', 'b', 'c', 'd']


def test_images_with_annotations_are_left():
    draft = draft_of([(1, 'a'), (1, 'b')], [(7, 1)])
    fix_images(draft)
    assert column(draft, 'images', 'id') == [1, 1]
    assert [each.rule for each in draft.left] == ['COCO003']


@pytest.mark.parametrize('used', [1, 2])
def test_of_images_with_one_file_the_annotated_is_kept(used):
    draft = draft_of([(1, 'a'), (2, 'a'), (3, 'c')], [(7, used)])
    fix_images(draft)
    assert column(draft, 'images', 'id') == [used, 3]


def test_two_annotated_images_of_one_file_are_left():
    draft = draft_of([(1, 'a'), (2, 'a')], [(7, 1), (8, 2)])
    fix_images(draft)
    assert column(draft, 'images', 'id') == [1, 2]
    assert [each.rule for each in draft.left] == ['COCO004']


def test_categories_are_sorted():
    kinds = [(1, 'c'), (2, 'no class'), (3, 'a'), (4, 'b')]
    draft = draft_of(kinds=kinds, classes='abc')
    sort_categories(draft)
    names = column(draft, 'categories', 'name')
    assert names == ['a', 'no class', 'b', 'c']
    assert column(draft, 'categories', 'id') == [3, 2, 4, 1]
    assert draft.changes[0].count == 3


@pytest.mark.parametrize('classes', ['', 'ab', 'abd', 'cab'])
def test_other_categories_stay(classes):
    kinds = [(1, 'c'), (3, 'a'), (4, 'b')]
    draft = draft_of(kinds=kinds, classes=classes)
    sort_categories(draft)
    if classes == 'ab':
        assert column(draft, 'categories', 'name') == ['c', 'a', 'b']
    assert draft.changes == []


def test_rules_that_are_not_chosen():
    draft = draft_of(
        [(1, 'a'), (1, 'a'), (2, 'a')],
        [(7, 9), (7, 9)],
        [(1, 'b'), (2, 'a')],
        'ab',
        rules=(),
    )
    drop_repeated_images(draft)
    fix_images(draft)
    number_annotations(draft)
    sort_categories(draft)
    assert draft.changes == draft.left == []
