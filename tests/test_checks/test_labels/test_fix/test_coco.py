"""Annotation files before and after their repair, as the rules see them."""

import copy
import json

import numpy as np
import pytest
from helpers.coco_to_fix import EXPECTED, GOOD, encoded, images_of, rules_of

from mmext.checks.labels import Expectations
from mmext.checks.labels.facts import ErrorKind, ImageFacts, ReadError
from mmext.checks.labels.fix.coco import (
    COCO_RULES,
    NotedSize,
    drop_repeated_images,
    fix_coco,
    fix_images,
    fix_sizes,
    number_annotations,
    sort_categories,
    why_size_stays,
)
from mmext.checks.labels.fix.coco_draft import CocoDraft, as_text
from mmext.checks.labels.fix.json_records import JsonRecords
from mmext.checks.labels.readers.coco import read_coco


def twins(content):
    """Two images of one id, of which the annotations can be of none."""
    content['images'].append({**content['images'][1], 'file_name': 'new.jpg'})
    content['annotations'] = [
        each for each in content['annotations'] if each['image_id'] != 2
    ]


def swap(content):
    names = content['categories']
    names[0], names[2] = names[2], names[0]


def at_3(**fields):
    return lambda c: c['annotations'][3].update(fields)


def repeat(content):
    content['annotations'].append({**content['annotations'][3], 'id': 99})


# name: (rule, plant, keys of annotation 3 after the repair, None if removed)
PLANTS = {
    'ids': ('COCO002', at_3(id=10), {'id': 18}),
    'twins': ('COCO003', twins, {}),
    'same_image': (
        'COCO003',
        lambda c: c['images'].append(dict(c['images'][1])),
        {},
    ),
    'same_file': (
        'COCO004',
        lambda c: c['images'].append({**c['images'][1], 'id': 9}),
        {},
    ),
    'no_image': ('COCO005', at_3(image_id=99), None),
    'no_category': ('COCO006', at_3(category_id=99), None),
    'order': ('COCO008', swap, {}),
    'no_area': ('COCO011', lambda c: c['annotations'][3].pop('area'), {}),
    'nan': ('DET001', at_3(bbox=[1, float('nan'), 3, 4]), None),
    'infinity': ('DET001', at_3(bbox=[1, 2, float('inf'), 4]), None),
    'flat': ('DET002', at_3(bbox=[1, 2, 0, 4]), None),
    'turned': ('DET002', at_3(bbox=[9, 9, -3, -4]), None),
    'outside': ('DET004', at_3(bbox=[70, 2, 3, 4]), None),
    'beyond': (
        'DET005',
        at_3(bbox=[-5, 40, 15, 20], area=300),
        {'bbox': [0, 40, 10, 8], 'area': 80},
    ),
    'beyond_floats': (
        'DET005',
        at_3(bbox=[60.5, 2.25, 10.0, 4], area=12.5),
        {'bbox': [60.5, 2.25, 3.5, 4], 'area': 12.5},
    ),
    'twice': ('DET010', repeat, {}),
    'size': (
        'PAIR004',
        lambda c: c['images'][2].update(width=100, height=50),
        {},
    ),
}


@pytest.mark.parametrize('case', PLANTS)
@pytest.mark.parametrize('indent', [None, 1])
def test_repairs(case, indent):
    rule, plant, fields = PLANTS[case]
    content = copy.deepcopy(GOOD)
    plant(content)
    images = images_of(content)
    before = encoded(content, indent=indent)
    assert rule in rules_of(before, images)
    fixed = fix_coco(before, EXPECTED, images)
    after = json.loads(fixed.content)
    images = images_of(after)
    assert rules_of(fixed.content, images) == set()
    assert {each.rule for each in fixed.changes} == {rule}
    assert fixed.left == ()
    wanted = [dict(each) for each in content['annotations']]
    if fields is None:
        del wanted[3]
    elif case == 'twice':
        del wanted[-1]
    else:
        wanted[3].update(fields)
    if case == 'no_area':
        wanted[3]['area'] = 200
    assert after['annotations'] == wanted
    assert after['info'] == GOOD['info']
    again = fix_coco(fixed.content, EXPECTED, images)
    assert (again.content, again.changes) == (fixed.content, ())


def test_what_images_and_categories_become():
    for case, key, wanted in (
        ('twins', 'images', 2),
        ('same_image', 'images', 2),
        ('same_file', 'images', 2),
    ):
        content = copy.deepcopy(GOOD)
        PLANTS[case][1](content)
        after = json.loads(fix_coco(encoded(content), EXPECTED).content)
        assert after[key][:4] == GOOD[key], case
        new = after[key][4:]
        if case == 'twins':
            assert new == [{**content[key][4], 'id': 5}]
        else:
            assert new == []
        assert content[key][1]['id'] == wanted
    content = copy.deepcopy(GOOD)
    swap(content)
    after = json.loads(fix_coco(encoded(content), EXPECTED).content)
    assert after['categories'] == GOOD['categories']


def test_size_of_the_file_is_written():
    content = copy.deepcopy(GOOD)
    PLANTS['size'][1](content)
    fixed = fix_coco(encoded(content), EXPECTED, images_of(content))
    assert json.loads(fixed.content) == GOOD
    (change,) = fixed.changes
    assert change.place == 'images[2]'
    assert json.loads(change.was) == {'width': 100, 'height': 50}


def test_clean_file_keeps_its_bytes():
    for options in ({}, {'indent': 2}, {'separators': (',', ':')}):
        content = encoded(GOOD, **options)
        fixed = fix_coco(content, EXPECTED, images_of(GOOD))
        assert fixed.content == content
        assert fixed.changes == fixed.left == ()


def test_removed_record_is_in_the_log():
    content = copy.deepcopy(GOOD)
    at_3(bbox=[1, 2, 0, 4])(content)
    (change,) = fix_coco(encoded(content), EXPECTED).changes
    assert change.place == 'annotations[3]'
    assert json.loads(change.was) == content['annotations'][3]
    assert change.now == ''


def test_missing_iscrowd_is_filled():
    content = copy.deepcopy(GOOD)
    for each in content['annotations'][2:]:
        del each['iscrowd']
    fixed = fix_coco(encoded(content, indent=2), EXPECTED)
    (change,) = fixed.changes
    assert (change.rule, change.count) == ('COCO014', 6)
    assert change.place == 'annotations[2].iscrowd'
    assert json.loads(fixed.content) == GOOD


def test_polygons_are_cut_with_their_box():
    content = copy.deepcopy(GOOD)
    polygon = [-10, 10, 10, 10, 10, 20, -10, 20]
    at_3(bbox=[-10, 10, 20, 10], segmentation=[polygon])(content)
    after = json.loads(fix_coco(encoded(content), EXPECTED).content)
    note = after['annotations'][3]
    assert note['bbox'] == [0, 10, 10, 10]
    assert sorted(zip(*[iter(note['segmentation'][0])] * 2)) == [
        (0, 10),
        (0, 20),
        (10, 10),
        (10, 20),
    ]
    assert note['area'] == 100


def test_area_of_polygons():
    content = copy.deepcopy(GOOD)
    at_3(segmentation=[[0, 0, 8, 0, 0, 8]])(content)
    del content['annotations'][3]['area']
    after = json.loads(fix_coco(encoded(content), EXPECTED).content)
    assert after['annotations'][3]['area'] == 32


def used_twins(content):
    content['images'].append({**content['images'][1], 'file_name': 'new.jpg'})


def same_file_used(content):
    content['images'][3]['file_name'] = '1.jpg'


def all_dangle(content):
    for each in content['annotations']:
        each['image_id'] += 100


def broken_image(content):
    del content['images'][1]['file_name']


def half_a_pixel(content):
    at_3(bbox=[-9, 2, 9.5, 4])(content)


def nearly_twice(content):
    """Another annotator's box of the same object."""
    repeat(content)
    left, top, wide, high = content['annotations'][-1]['bbox']
    content['annotations'][-1]['bbox'] = [left, top, wide + 1, high]


def other_area(content):
    repeat(content)
    content['annotations'][-1]['area'] = 7


# name: (rule, plant, part of the reason)
LEFT = {
    'used_twins': ('COCO003', used_twins, 'to which of the images'),
    'same_file': ('COCO004', same_file_used, 'several of the images have'),
    'all_dangle': ('COCO005', all_dangle, 'no annotation would remain'),
    'broken_image': ('COCO005', broken_image, 'some of the images cannot'),
    'no_box': (
        'COCO011',
        lambda c: c['annotations'][3].pop('bbox'),
        'it has no box',
    ),
    'half_a_pixel': ('DET005', half_a_pixel, 'less than a pixel'),
    'differ': ('DET010', other_area, 'differ in area'),
    'nearly': ('DET010', nearly_twice, 'which of two boxes'),
    'scaled': (
        'PAIR004',
        lambda c: c['images'][2].update(width=128, height=96),
        'seems to have been scaled',
    ),
}


@pytest.mark.parametrize('case', LEFT)
def test_leaves_what_would_be_a_guess(case):
    rule, plant, reason = LEFT[case]
    content = copy.deepcopy(GOOD)
    plant(content)
    images = images_of(content)
    if case == 'broken_image':
        images = images[1:]
    before = encoded(content)
    assert rule in rules_of(before, images)
    fixed = fix_coco(before, EXPECTED, images)
    assert fixed.content == before
    assert {each.rule for each in fixed.left} == {rule}
    assert all(reason in each.reason for each in fixed.left)


def test_boxes_of_an_image_of_uncertain_size_are_left():
    content = copy.deepcopy(GOOD)
    content['images'][3].update(width=48, height=64)
    at_3(bbox=[20, 30, 20, 30], area=600)(content)
    images = images_of(content)
    fixed = fix_coco(encoded(content), EXPECTED, images)
    assert fixed.content == encoded(content)
    reasons = {each.rule: each.reason for each in fixed.left}
    assert 'objects fit the size that is noted' in reasons['PAIR004']
    assert 'size of the image is not certain' in reasons['DET005']


def test_turned_images_are_left():
    content = copy.deepcopy(GOOD)
    images = [
        ImageFacts(width=48, height=64, orientation=6)
        for _ in content['images']
    ]
    at_3(bbox=[-5, 40, 15, 20])(content)
    fixed = fix_coco(encoded(content), EXPECTED, images)
    assert fixed.content == encoded(content)


@pytest.mark.parametrize(
    'content', [b'', b'[]', b'{"images": [', b'{"images": []}', b'\xff{}']
)
def test_files_that_cannot_be_read_are_left(content):
    fixed = fix_coco(content, EXPECTED)
    assert (fixed.content, fixed.changes) == (content, ())


@pytest.mark.parametrize('text', ['[' * 9999 + ']' * 9999, '9' * 9999])
def test_files_that_cannot_be_edited_are_left(text):
    content = copy.deepcopy(GOOD)
    at_3(bbox=[1, 2, 0, 0], segmentation='HERE')(content)
    before = encoded(content).replace(b'"HERE"', text.encode())
    fixed = fix_coco(before, EXPECTED)
    assert (fixed.content, fixed.changes) == (before, ())


def test_records_that_cannot_be_read_stay():
    content = copy.deepcopy(GOOD)
    content['annotations'][3]['bbox'] = 'nothing'
    content['annotations'][4]['bbox'] = [1, 2, 0, 0]
    after = json.loads(fix_coco(encoded(content), EXPECTED).content)
    del content['annotations'][4]
    assert after == content


def test_only_chosen_rules():
    for rule, plant, _ in PLANTS.values():
        content = copy.deepcopy(GOOD)
        plant(content)
        before = encoded(content)
        rules = COCO_RULES - {rule}
        fixed = fix_coco(before, EXPECTED, images_of(content), rules=rules)
        assert fixed.content == before


def test_rejects_facts_of_other_images():
    with pytest.raises(ValueError, match='each of the 4 images'):
        fix_coco(encoded(GOOD), EXPECTED, images_of(GOOD)[:2])


CONTENT = {
    'images': [
        {'id': 5, 'file_name': 'a'},
        {'id': [], 'file_name': 'b'},
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


RULES = ('COCO002', 'COCO003', 'COCO004', 'COCO008')
LARGEST = (1 << 63) - 1


def coco_ids_draft_of(images=(), notes=(), kinds=(), classes=(), rules=RULES):
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
    draft = coco_ids_draft_of(notes=[(3, 1), (5, 1), (3, 2), (3, 2), (-1, 1)])
    number_annotations(draft)
    assert column(draft, 'annotations', 'id') == [3, 5, 6, 7, -1]
    assert column(draft, 'annotations', 'image_id') == [1, 1, 2, 2, 1]


def test_ids_of_removed_annotations_are_free():
    draft = coco_ids_draft_of(notes=[(3, 1), (3, 1)])
    draft.remove('COCO005', 0, 'why')
    number_annotations(draft)
    assert column(draft, 'annotations', 'id') == [3]
    assert len(draft.changes) == 1


def test_no_larger_id():
    draft = coco_ids_draft_of(notes=[(LARGEST, 1), (LARGEST, 1)])
    number_annotations(draft)
    assert draft.changes == []
    assert draft.left[0].reason == 'there is no larger id'


def test_equal_images_become_one():
    draft = coco_ids_draft_of(
        [(1, 'a'), (1, 'a'), (1, 'a'), (2, 'b')], [(7, 1)]
    )
    drop_repeated_images(draft)
    fix_images(draft)
    assert column(draft, 'images', 'id') == [1, 2]
    assert draft.left == []


def test_images_that_nothing_names_get_new_ids():
    draft = coco_ids_draft_of(
        [(1, 'a'), (1, 'b'), (2, 'c'), (2, 'd')], [(7, 9)]
    )
    fix_images(draft)
    assert column(draft, 'images', 'id') == [1, 10, 2, 11]
    assert column(draft, 'images', 'file_name') == ['a', 'b', 'c', 'd']


def test_images_with_annotations_are_left():
    draft = coco_ids_draft_of([(1, 'a'), (1, 'b')], [(7, 1)])
    fix_images(draft)
    assert column(draft, 'images', 'id') == [1, 1]
    assert [each.rule for each in draft.left] == ['COCO003']


@pytest.mark.parametrize('used', [1, 2])
def test_of_images_with_one_file_the_annotated_is_kept(used):
    draft = coco_ids_draft_of([(1, 'a'), (2, 'a'), (3, 'c')], [(7, used)])
    fix_images(draft)
    assert column(draft, 'images', 'id') == [used, 3]


def test_two_annotated_images_of_one_file_are_left():
    draft = coco_ids_draft_of([(1, 'a'), (2, 'a')], [(7, 1), (8, 2)])
    fix_images(draft)
    assert column(draft, 'images', 'id') == [1, 2]
    assert [each.rule for each in draft.left] == ['COCO004']


def test_categories_are_sorted():
    kinds = [(1, 'c'), (2, 'no class'), (3, 'a'), (4, 'b')]
    draft = coco_ids_draft_of(kinds=kinds, classes='abc')
    sort_categories(draft)
    names = column(draft, 'categories', 'name')
    assert names == ['a', 'no class', 'b', 'c']
    assert column(draft, 'categories', 'id') == [3, 2, 4, 1]
    assert draft.changes[0].count == 3


@pytest.mark.parametrize('classes', ['', 'ab', 'abd', 'cab'])
def test_other_categories_stay(classes):
    kinds = [(1, 'c'), (3, 'a'), (4, 'b')]
    draft = coco_ids_draft_of(kinds=kinds, classes=classes)
    sort_categories(draft)
    if classes == 'ab':
        assert column(draft, 'categories', 'name') == ['c', 'a', 'b']
    assert draft.changes == []


def test_rules_that_are_not_chosen():
    draft = coco_ids_draft_of(
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


@pytest.mark.parametrize(
    ('noted', 'stored', 'fits', 'part'),
    [
        ((0, 0), (320, 240), False, ''),
        ((640, 0), (320, 240), False, ''),
        ((640, 480), (320, 240), True, 'scaled'),
        ((1333, 750), (640, 360), True, 'scaled'),
        ((640, 480), (480, 640), True, ''),
        ((640, 480), (480, 640), False, 'objects fit'),
    ],
)
def test_reasons(noted, stored, fits, part):
    why = why_size_stays(NotedSize(noted, stored), fits)
    assert part in why
    assert bool(part) == bool(why)


def sizes_of(noted, facts, box=(1, 2, 3, 4), rules=('PAIR004',), **more):
    image = {'id': 1, 'file_name': 'a'} | dict(zip(('width', 'height'), noted))
    note = {'id': 1, 'image_id': 1, 'category_id': 1, 'bbox': box} | more
    content = {'images': [image], 'annotations': [note], 'categories': []}
    text = json.dumps(content).encode()
    draft = CocoDraft(
        read_coco(text),
        JsonRecords(text, list(content)),
        Expectations(),
        rules,
    )
    sizes, certain = fix_sizes(draft, facts)
    after = json.loads(draft.records.render())['images'][0]
    return sizes.tolist()[0], certain.tolist()[0], after, draft


FILE = ImageFacts(width=64, height=48)


def test_size_of_the_file():
    sizes, certain, after, draft = sizes_of((100, 48), [FILE])
    assert (sizes, certain) == ([64, 48], True)
    assert (after['width'], after['height']) == (64, 48)
    assert len(draft.changes) == 1
    _, _, after, _ = sizes_of((), [FILE])
    assert (after['width'], after['height']) == (64, 48)


def test_sizes_that_are_right_stay():
    sizes, certain, _, draft = sizes_of((64.0, 48), [FILE])
    assert (sizes, certain, draft.changes) == ([64, 48], True, [])


@pytest.mark.parametrize(
    'facts',
    [
        [],
        [None],
        [
            ImageFacts(
                width=9, height=9, error=ReadError(ErrorKind.CORRUPT, 'data')
            )
        ],
    ],
)
def test_without_a_file_the_noted_size_counts(facts):
    sizes, certain, _, draft = sizes_of((100, 48), facts)
    assert (sizes, certain, draft.changes) == ([100, 48], True, [])
    _, certain, _, _ = sizes_of((), facts)
    assert not certain


@pytest.mark.parametrize(
    'more',
    [
        {'box': (60, 2, 30, 4)},
        {'segmentation': {'size': [48, 100], 'counts': 'x'}},
    ],
)
def test_objects_of_the_noted_size(more):
    _, certain, after, draft = sizes_of((100, 48), [FILE], **more)
    assert not certain
    assert after['width'] == 100
    assert len(draft.left) == 1


def test_turned_images_and_other_rules_are_not_certain():
    turned = ImageFacts(width=64, height=48, orientation=8)
    _, certain, after, draft = sizes_of((100, 48), [turned])
    assert (certain, after['width'], draft.left) == (False, 100, [])
    _, certain, after, draft = sizes_of((100, 48), [FILE], rules=())
    assert (certain, after['width'], draft.left) == (False, 100, [])
