"""Each error of an annotation file is found by its rule, and no other."""

import copy
import json
import math

import pytest

from mmext.checks.labels.expectations import Expectations
from mmext.checks.labels.readers.coco import CocoFacts, read_coco
from mmext.checks.labels.rules.registry import RULES

CLASSES = ('cat', 'dog', 'cow')
EXPECTED = Expectations(task='detection', num_classes=3, classes=CLASSES)
GOOD = {
    'images': [
        {'id': i, 'file_name': f'{i}.jpg', 'width': 64, 'height': 48}
        for i in range(1, 5)
    ],
    'annotations': [
        {
            'id': 10 + i,
            'image_id': 1 + i % 4,
            'category_id': 7 + i % 3,
            'bbox': [1, 2, 10, 20],
            'area': 200,
            'iscrowd': 0,
        }
        for i in range(8)
    ],
    'categories': [
        {'id': 7 + i, 'name': name} for i, name in enumerate(CLASSES)
    ],
}


def findings(content: dict | str, expected=EXPECTED) -> list:
    text = content if isinstance(content, str) else json.dumps(content)
    facts = CocoFacts(
        split='train', path='ann.json', file=read_coco(text.encode())
    )
    return [
        finding
        for rule in RULES.values()
        if rule.scope == 'coco'
        for finding in rule.check(facts, expected)
    ]


def test_clean_file():
    assert findings(GOOD) == []
    more = copy.deepcopy(GOOD)
    more['categories'].insert(1, {'id': 99, 'name': 'not used'})
    assert findings(more) == []


@pytest.mark.parametrize('value', [0, -3, math.nan, math.inf])
def test_sizes_that_are_none(value):
    content = copy.deepcopy(GOOD)
    content['images'][1]['height'] = content['images'][3]['width'] = value
    (finding,) = findings(content)
    assert (finding.rule, finding.count) == ('COCO013', 2)
    assert finding.place == 'images[1], images[3]'


def test_lost_categories_are_said_once():
    content = copy.deepcopy(GOOD)
    content['categories'] = [{'id': 'x'}]
    found = {each.rule for each in findings(content)}
    assert found == {'COCO001', 'COCO006'}
    (finding,) = findings('')
    assert finding.rule == 'COCO001'


def test_ids_used_many_times_name_the_first():
    content = copy.deepcopy(GOOD)
    for row in (2, 5, 7):
        content['annotations'][row]['id'] = 11
    found = [each for each in findings(content) if each.rule == 'COCO002']
    assert [each.place for each in found] == [
        'annotations[2]',
        'annotations[5]',
        'annotations[7]',
    ]
    assert {each.value for each in found} == {'11, first in annotations[1]'}
