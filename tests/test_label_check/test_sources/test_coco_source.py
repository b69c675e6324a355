"""Samples of COCO files; what is left out is right."""

import json
import random

import pytest

from mmext.label_check.expectations import Expectations
from mmext.label_check.facts import SampleFacts
from mmext.label_check.readers.coco_reader import read_coco
from mmext.label_check.rules import det_boxes  # noqa: F401
from mmext.label_check.rules.registry import RULES
from mmext.label_check.sources.coco_source import (
    coco_class_counts,
    coco_samples,
    suspicious_rows,
)

CLASSES = ('cat', 'dog')


def content(annotations: list[dict], **more) -> bytes:
    images = [
        {'id': 5 + i, 'file_name': f'd/{i}.jpg', 'width': 64, 'height': 48}
        for i in range(3)
    ]
    categories = [{'id': 9, 'name': 'cat'}, {'id': 4, 'name': 'dog'}]
    root = {
        'images': images,
        'annotations': annotations,
        'categories': categories,
        **more,
    }
    return json.dumps(root).encode()


def note(index: int, image: int = 5, bbox=(1, 2, 10, 20), **more) -> dict:
    return {
        'id': index,
        'image_id': image,
        'category_id': 9,
        'bbox': list(bbox),
        'area': 200,
        **more,
    }


def findings(samples) -> list:
    expected = Expectations(task='detection', num_classes=2, classes=CLASSES)
    return [
        (finding.rule, sample.index, finding.place)
        for sample in samples
        for rule_id, rule in RULES.items()
        if rule_id.startswith('DET')
        for finding in rule.check(
            SampleFacts(split='train', sample=sample), expected
        )
    ]


def test_samples():
    file = read_coco(content([note(1), note(2, 6, category_id=4)]))
    samples = list(
        coco_samples(file, 'a.json', 'images', CLASSES, every_box=True)
    )
    assert [each.image for each in samples] == [
        'images/d/0.jpg',
        'images/d/1.jpg',
        'images/d/2.jpg',
    ]
    assert [each.num_boxes for each in samples] == [1, 1, 0]
    assert (samples[0].width, samples[0].height) == (64, 48)
    box = samples[1].boxes[0]
    assert (box.label, box.class_name) == (1, 'dog')
    assert box.box == (1.0, 2.0, 11.0, 22.0)
    assert box.place == 'annotations[1]'


def test_right_boxes_are_not_listed():
    file = read_coco(content([note(1), note(2, bbox=(0, 0, 64, 48))]))
    first, *_ = coco_samples(file, 'a.json', classes=CLASSES)
    assert first.boxes == ()
    assert (first.num_boxes, first.image) == (2, '')


WRONG = [
    {'bbox': (1, 2, 0, 20)},
    {'bbox': (1, 2, 10, -3)},
    {'bbox': (1, 2, 0.5, 20)},
    {'bbox': (70, 2, 10, 20)},
    {'bbox': (60, 2, 10, 20)},
    {'bbox': (-5, 2, 10, 20)},
    {'bbox': (float('nan'), 2, 10, 20)},
    {'category_id': 77},
    {'segmentation': 'none'},
]


@pytest.mark.parametrize('change', WRONG)
def test_wrong_boxes_are_listed(change):
    bad = note(2, **{'bbox': (3, 4, 10, 20), **change})
    file = read_coco(content([note(1), bad]))
    assert suspicious_rows(file, CLASSES).tolist() == [False, True]


def test_short_polygons_of_listed_boxes_are_named():
    bad = note(1, bbox=(60, 2, 10, 20), segmentation=[[1, 2, 3, 4]])
    (first, *_) = coco_samples(read_coco(content([bad])), 'a', '', CLASSES)
    assert first.boxes[0].polygon_error.startswith('polygon 0 has 4 numbers')


def test_nothing_that_a_rule_objects_to_is_left_out():
    for seed in range(80):
        random.seed(seed)
        notes = []
        for index in range(12):
            change = random.choice([{}, {}, *WRONG[:8]])
            spot = random.choice([(1, 2, 10, 20), (5, 6, 20, 9)])
            given = {'bbox': spot, 'image': random.choice((5, 6)), **change}
            notes.append(note(index, **given))
        file = read_coco(content(notes))
        fast, full = (
            findings(coco_samples(file, 'a', '', CLASSES, every_box=every))
            for every in (False, True)
        )
        assert fast == full


def test_class_counts():
    notes = [
        note(1),
        note(2),
        note(3, 6),
        note(4, 6, category_id=4),
        note(5, 99),
        note(6, category_id=77),
    ]
    counts = coco_class_counts(read_coco(content(notes)), CLASSES)
    assert counts == [(3, 2), (1, 1)]


def test_labels_are_in_the_order_of_the_file():
    """As MMDetection numbers them, whatever the order of the classes."""
    file = read_coco(content([note(1, bbox=(60, 2, 10, 20))]))
    first, *_ = coco_samples(file, 'a', '', ('dog', 'cat'))
    assert first.boxes[0].label == 0
    assert first.boxes[0].class_name == 'cat'


def test_empty_file():
    file = read_coco(b'{"images": [], "annotations": [], "categories": []}')
    assert list(coco_samples(file, 'a')) == []
    assert coco_class_counts(file, CLASSES) == [(0, 0), (0, 0)]
