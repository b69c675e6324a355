"""Annotation files before and after their repair, as the rules see them."""

import copy
import json

import pytest
from helpers.coco_to_fix import EXPECTED, GOOD, encoded, images_of, rules_of

from mmext.checks.labels.facts import ImageFacts
from mmext.checks.labels.fix.coco import COCO_RULES, fix_coco


def twins(content):
    """Two images of one id, of which the annotations can be of none."""
    content['images'].append({**content['images'][1], 'file_name': 'new.jpg'})
    content['annotations'] = [
        annotation
        for annotation in content['annotations']
        if annotation['image_id'] != 2
    ]


def at_3(**fields):
    return lambda c: c['annotations'][3].update(fields)


def repeat(content):
    content['annotations'].append({**content['annotations'][3], 'id': 99})


# What the plants of test_fix_labels.py do not have; name: (rule, plant, keys
# of annotation 3 after the repair)
PLANTS = {
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
    'no_area': ('COCO011', lambda c: c['annotations'][3].pop('area'), {}),
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
    'size': (
        'PAIR004',
        lambda c: c['images'][2].update(width=100, height=50),
        {},
    ),
}


@pytest.mark.parametrize('case', PLANTS)
def test_repairs(case):
    rule, plant, fields = PLANTS[case]
    content = copy.deepcopy(GOOD)
    plant(content)
    images = images_of(content)
    before = encoded(content)
    assert rule in rules_of(before, images)
    fixed = fix_coco(before, EXPECTED, images)
    after = json.loads(fixed.content)
    images = images_of(after)
    assert rules_of(fixed.content, images) == set()
    assert {annotation.rule for annotation in fixed.changes} == {rule}
    wanted = [dict(annotation) for annotation in content['annotations']]
    wanted[3].update(fields)
    if case == 'no_area':
        wanted[3]['area'] = 200
    assert after['annotations'] == wanted
    assert after['info'] == GOOD['info']
    again = fix_coco(fixed.content, EXPECTED, images)
    assert (again.content, again.changes) == (fixed.content, ())


STYLES = [
    {},
    {'separators': (',', ':')},
    {'indent': 2},
    {'indent': 0},
    {'indent': '\t', 'separators': (',', ':')},
    {'ensure_ascii': False},
]


@pytest.mark.parametrize('options', STYLES, ids=str)
@pytest.mark.parametrize('end', ['', '\n'])
def test_style_of_the_file_is_kept(options, end):
    content = {
        'by "ä\r\n"': ['ü', float('nan'), -float('inf'), -0.0, 1e-7, 2**80],
        'share': 0.1 + 0.2,
        **copy.deepcopy(GOOD),
    }

    def text() -> bytes:
        return (json.dumps(content, **options) + end).encode()

    clean = fix_coco(text(), EXPECTED, images_of(content))
    assert (clean.content, clean.changes) == (text(), ())
    at_3(bbox=[1, 2, 0, 4])(content)
    fixed = fix_coco(text(), EXPECTED, images_of(content))
    del content['annotations'][3]
    assert fixed.content == text()


def test_keys_that_occur_twice():
    """One of the values would be lost."""
    content = copy.deepcopy(GOOD)
    at_3(bbox=[1, 2, 0, 4])(content)
    for old, new in (
        (b'"info"', b'"categories"'),
        (b'"year"', b'"version"'),
    ):
        before = encoded(content).replace(old, new)
        fixed = fix_coco(before, EXPECTED)
        assert (fixed.content, fixed.changes) == (before, ())
        key = new.decode().strip('"')
        twice = f"it cannot be edited: the key '{key}' occurs twice in an"
        assert fixed.problem.startswith(twice)


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


def used_twins(content):
    content['images'].append({**content['images'][1], 'file_name': 'new.jpg'})


def same_file_used(content):
    content['images'][3]['file_name'] = '1.jpg'


def all_dangle(content):
    for annotation in content['annotations']:
        annotation['image_id'] += 100


def broken_image(content):
    del content['images'][1]['file_name']


def half_a_pixel(content):
    at_3(bbox=[-9, 2, 9.5, 4])(content)


def other_area(content):
    repeat(content)
    content['annotations'][-1]['area'] = 7


# name: (rule, plant)
LEFT = {
    'used_twins': ('COCO003', used_twins),
    'same_file': ('COCO004', same_file_used),
    'all_dangle': ('COCO005', all_dangle),
    'broken_image': ('COCO005', broken_image),
    'no_box': ('COCO011', lambda c: c['annotations'][3].pop('bbox')),
    'half_a_pixel': ('DET005', half_a_pixel),
    'differ': ('DET010', other_area),
    'scaled': (
        'PAIR004',
        lambda c: c['images'][2].update(width=128, height=96),
    ),
}


@pytest.mark.parametrize('case', LEFT)
def test_leaves_what_would_be_a_guess(case):
    rule, plant = LEFT[case]
    content = copy.deepcopy(GOOD)
    plant(content)
    images = images_of(content)
    if case == 'broken_image':
        images = images[1:]
    before = encoded(content)
    assert rule in rules_of(before, images)
    fixed = fix_coco(before, EXPECTED, images)
    assert fixed.content == before


def test_boxes_of_an_image_of_uncertain_size_are_left():
    content = copy.deepcopy(GOOD)
    content['images'][3].update(width=48, height=64)
    at_3(bbox=[20, 30, 20, 30], area=600)(content)
    images = images_of(content)
    fixed = fix_coco(encoded(content), EXPECTED, images)
    assert fixed.content == encoded(content)
    assert 'PAIR004' in rules_of(fixed.content, images)


def test_turned_images_are_left():
    content = copy.deepcopy(GOOD)
    images = [
        ImageFacts(width=48, height=64, orientation=6)
        for _ in content['images']
    ]
    at_3(bbox=[-5, 40, 15, 20])(content)
    fixed = fix_coco(encoded(content), EXPECTED, images)
    assert fixed.content == encoded(content)


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


def test_area_follows_the_box_if_it_was_the_area_of_the_box():
    for area, after in ((200, 100), (200.4, 100), (77, 77), (None, None)):
        content = copy.deepcopy(GOOD)
        at_3(bbox=[-10, 0, 20, 10], area=area)(content)
        fixed = fix_coco(encoded(content), EXPECTED, rules=('DET005',))
        assert json.loads(fixed.content)['annotations'][3]['area'] == after
