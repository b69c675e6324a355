"""Samples of COCO files; what is left out is right."""

import json
import random

import numpy as np
import pytest

from mmext.checks.labels.expectations import Expectations
from mmext.checks.labels.facts import SampleFacts
from mmext.checks.labels.readers.coco import read_coco, read_rle
from mmext.checks.labels.rules.registry import RULES
from mmext.checks.labels.sources import coco
from mmext.checks.labels.sources.coco import coco_samples

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
        (finding.rule, sample.index, finding.position)
        for sample in samples
        for rule_id, rule in RULES.items()
        if rule_id.startswith('DET') and rule.scope == 'sample'
        for finding in rule.check(
            SampleFacts(split='train', sample=sample), expected
        )
    ]


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


def test_nothing_that_a_rule_objects_to_is_left_out(monkeypatch):
    for seed in range(80):
        random.seed(seed)
        notes = []
        for index in range(12):
            change = random.choice([{}, {}, *WRONG[:8]])
            spot = random.choice([(1, 2, 10, 20), (5, 6, 20, 9)])
            given = {'bbox': spot, 'image': random.choice((5, 6)), **change}
            notes.append(note(index, **given))
        file = read_coco(content(notes))
        fast = findings(coco_samples(file, 'a', '', CLASSES))
        with monkeypatch.context() as patch:
            patch.setattr(
                coco, 'suspicious_rows', lambda *_: np.ones(12, np.bool_)
            )
            full = findings(coco_samples(file, 'a', '', CLASSES))
        assert fast == full


def test_labels_are_in_the_order_of_the_file():
    """As MMDetection numbers them, whatever the order of the classes."""
    file = read_coco(content([note(1, bbox=(60, 2, 10, 20))]))
    first, *_ = coco_samples(file, 'a', '', ('dog', 'cat'))
    assert first.boxes[0].label == 0
    assert first.boxes[0].class_name == 'cat'


SIZE = (7, 9)


def plain(**fields) -> dict:
    return {'size': [7, 9], 'counts': [10, 50, 3]} | fields


@pytest.mark.parametrize('seed', range(20))
def test_what_pycocotools_writes_is_right(seed: int):
    mask_tools = pytest.importorskip('pycocotools.mask')
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 200, 2).tolist()
    mask = rng.random((height, width)) < rng.choice([0, 0.01, 0.5, 1])
    value = mask_tools.encode(np.asfortranarray(mask, np.uint8))
    value['counts'] = value['counts'].decode()
    assert read_rle(value, (height, width))[0] == ''
    assert read_rle(value, (0.0, 0.0))[0] == ''
    assert 'the image of' in read_rle(value, (height + 1, width))[0]
    assert read_rle(value | {'size': [height, width + 1]}, (0, 0))[0]
    if len(value['counts']) > 1:
        cut = value | {'counts': value['counts'][:-1]}
        assert read_rle(cut, (height, width))[0]


def test_lengths_that_are_written_out():
    assert read_rle(plain(), SIZE)[0] == ''
    text, _ = read_rle(plain(counts=[10, 50]), SIZE)
    assert text.startswith('the counts of the RLE are 60 pixels together')
