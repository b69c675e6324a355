"""Which size of an image is believed."""

import json

import pytest

from mmext.label_check import Expectations, ImageFacts
from mmext.label_check.fix._coco_draft import CocoDraft
from mmext.label_check.fix._coco_sizes import (
    NotedSize,
    fix_sizes,
    why_size_stays,
)
from mmext.label_check.fix._json_records import JsonRecords
from mmext.label_check.readers.coco_reader import read_coco


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
        [ImageFacts(width=9, height=9, error='corrupt: data')],
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
