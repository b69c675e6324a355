"""An annotation file without an error, and what all rules say of one."""

import json

from mmext.checks.labels import Expectations
from mmext.checks.labels.facts import ImageFacts, SampleFacts
from mmext.checks.labels.readers.coco import read_coco
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.sources.coco import coco_samples

CLASSES = ('cat', 'dog', 'cow')
EXPECTED = Expectations(task='detection', num_classes=3, classes=CLASSES)
SIZE = (64, 48)
GOOD = {
    'info': {'year': 2020, 'version': 1.50},
    'images': [
        {'id': i, 'file_name': f'{i}.jpg', 'width': 64, 'height': 48}
        for i in range(1, 5)
    ],
    'annotations': [
        {
            'id': 10 + i,
            'image_id': 1 + i % 4,
            'category_id': 7 + i % 3,
            'bbox': [1 + i, 2, 10, 20],
            'area': 200,
            'iscrowd': 0,
            'by': ['me', 1.5],
        }
        for i in range(8)
    ],
    'categories': [
        {'id': 7 + i, 'name': name} for i, name in enumerate(CLASSES)
    ],
}


def images_of(content: dict, size=SIZE) -> list[ImageFacts]:
    """Facts of the images of a file, all of one size."""
    return [
        ImageFacts(width=size[0], height=size[1], mode='RGB')
        for _ in content['images']
    ]


def findings(content: bytes, images, expected=EXPECTED) -> list:
    """What all rules say of the file and its boxes."""
    file = read_coco(content, 'train', 'ann.json')
    results = []
    samples = list(coco_samples(file, 'ann.json', 'at', expected.classes))
    for rule in RULES.values():
        if rule.scope == 'coco':
            results += rule.check(file, expected)
        elif rule.scope == 'sample':
            for sample, image in zip(samples, images or [None] * len(samples)):
                own = SampleFacts(split='train', sample=sample, image=image)
                results += rule.check(own, expected)
    return [result for result in results if result.rule != 'DET011']


def rules_of(content: bytes, images) -> set[str]:
    """Ids of those that object to something."""
    return {finding.rule for finding in findings(content, images)}


def encoded(content: dict, **options) -> bytes:
    """Bytes of the file."""
    return json.dumps(content, **options).encode()
