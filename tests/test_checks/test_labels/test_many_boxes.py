"""The time of a check grows with the number of labels, not with its square."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.label_report import save
from helpers.right_sets import check

from mmext.checks.labels.rules import RULES

Draw = Callable[[random.Random], tuple]
SCENES: dict[str, Draw] = {
    'equal': lambda rng: (0.5, 0.5, 0.25, 0.25),
    'nearly equal': lambda rng: (
        *(0.5 + 0.002 * rng.random(), 0.5 + 0.002 * rng.random()),
        *(0.25, 0.25),
    ),
    'of one left side': lambda rng: (
        (width := rng.uniform(0.02, 0.9)) / 2,
        (height := rng.uniform(0.02, 0.9)) / 2,
        width,
        height,
    ),
}


def write(root: Path, scene: str, number: int) -> dict[str, dict]:
    """One image with boxes in two formats; the ways to check them."""
    rng = random.Random(1)
    boxes = [SCENES[scene](rng) for _ in range(number)]
    images = root / 'images/train'
    save(images / '0.png', np.full((480, 640, 3), 90, np.uint8))
    labels = root / 'labels/train/0.txt'
    labels.parent.mkdir(parents=True)
    labels.write_text(
        ''.join(f'0 {x!r} {y!r} {w!r} {h!r}\n' for x, y, w, h in boxes)
    )
    (root / 'data.yaml').write_text('train: images/train\nnames: [a]\n')
    content = {
        'images': [
            {'id': 1, 'file_name': '0.png', 'width': 640, 'height': 480}
        ],
        'categories': [{'id': 1, 'name': 'a'}],
        'annotations': [
            {
                'id': index,
                'image_id': 1,
                'category_id': 1,
                'bbox': [
                    *((x - w / 2) * 640, (y - h / 2) * 480),
                    *(w * 640, h * 480),
                ],
                'area': w * h * 640 * 480,
                'iscrowd': 0,
            }
            for index, (x, y, w, h) in enumerate(boxes, 1)
        ],
    }
    (root / 'a.json').write_text(json.dumps(content))
    return {
        'yolo': {'yolo': root},
        'coco': {'coco': root / 'a.json', 'images': images},
    }


def found(root: Path, way: dict) -> tuple[float, dict[str, int]]:
    """Seconds of the CPU that a check takes, and what it finds."""
    start = time.process_time()
    _, report = check(root, **way)
    seconds = time.process_time() - start
    return seconds, {g['rule']: g['count'] for g in report['groups']}


@pytest.mark.parametrize('scene', SCENES)
def test_boxes_that_are_close(scene, tmp_path):
    """Ten times as many take far less than a hundred times as long."""
    for form in ('yolo', 'coco'):
        seconds = {}
        for number in (1_000, 10_000):
            root = tmp_path / form / str(number)
            way = write(root, scene, number)[form]
            seconds[number], counts = found(tmp_path, way)
            if scene != 'of one left side':
                assert counts == {'DET010': number - 1}
        assert seconds[10_000] < 30 * max(seconds[1_000], 0.1)


@pytest.mark.slow
def test_a_label_file_of_100_000_equal_lines(tmp_path):
    seconds, counts = found(
        tmp_path, write(tmp_path, 'equal', 100_000)['yolo']
    )
    assert counts == {'DET010': 99_999}
    assert seconds < 60


def test_annotations_of_as_many_categories_that_are_not_there(tmp_path):
    way = write(tmp_path, 'of one left side', 20_000)['coco']
    content = json.loads(way['coco'].read_bytes())
    for number, note in enumerate(content['annotations']):
        note['category_id'] = 5 * number
    way['coco'].write_text(json.dumps(content))
    seconds, counts = found(tmp_path, {**way, 'select': 'COCO006'})
    assert counts == {'COCO006': 20_000}
    assert seconds < 30


def test_a_page_of_a_mask_with_250_wrong_values(tmp_path):
    """A picture shows all that is wrong in a mask: a few are enough."""
    pixels = np.zeros((48, 64), np.uint8)
    pixels.ravel()[100:350] = np.arange(5, 255)
    masks = tmp_path / 'masks'
    save(masks / '0.png', pixels)
    page = tmp_path / 'page.html'
    way = {'masks': masks, 'num_classes': 3, 'html': page}
    seconds, counts = found(tmp_path, way)
    assert counts.keys() == {'SEG001', 'SEG006', 'CLS001'}
    assert seconds < 20
    text = page.read_text()
    number = text.count('data:image/webp')
    assert 0 < number <= 2 * 5
    assert RULES['SEG001'].title in text
