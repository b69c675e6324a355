"""Ground truth comes from the annotation, in pixels of the image."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config

from mmext.apis.infer import Detections
from mmext.apis.samples import GroundTruth, draw_comparison, read_ground_truth

NUM_IMAGES = 9


@pytest.fixture
def finder(monkeypatch, checkout):
    monkeypatch.syspath_prepend(checkout / 'tests' / 'reference')
    return importlib.import_module('rectangle_finder')


@pytest.fixture
def config(finder, tmp_path):
    """A COCO set of images 0.png to 8.png; image k has k boxes, one crowd."""
    annotations = []
    for index in range(NUM_IMAGES):
        finder.paint(tmp_path / f'images/{index}.png', (40, 30))
        for number in range(index + 1):
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': index,
                    'category_id': 1 + number % 2,
                    'bbox': [number, 2, 10, 5],
                    'area': 50,
                    'iscrowd': int(number == index),
                }
            )
    content = {
        'images': [
            {'id': i, 'file_name': f'{i}.png', 'width': 40, 'height': 30}
            for i in range(NUM_IMAGES)
        ],
        'annotations': annotations,
        'categories': [{'id': 1, 'name': 'red'}, {'id': 2, 'name': 'blue'}],
    }
    (tmp_path / 'val.json').write_text(json.dumps(content))
    return Config.fromfile(finder.write_config(tmp_path))


def test_boxes_are_as_annotated(config, tmp_path):
    truths = read_ground_truth(config, NUM_IMAGES)
    assert [len(truth.boxes) for truth in truths] == list(range(NUM_IMAGES))
    assert truths[3].path == tmp_path / 'images' / '3.png'
    assert truths[3].boxes.tolist() == [
        [0, 2, 10, 7],
        [1, 2, 11, 7],
        [2, 2, 12, 7],
    ]
    assert truths[3].labels.tolist() == [0, 1, 0]
    assert truths[3].classes == ('red', 'blue')
    assert truths[0].boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ('count', 'chosen'),
    [(1, [0]), (2, [0, 8]), (3, [0, 4, 8]), (50, list(range(9)))],
)
def test_images_are_spread_over_the_set(config, count, chosen):
    truths = read_ground_truth(config, count)
    assert [int(truth.path.stem) for truth in truths] == chosen


def test_reads_wrapped_sets(config):
    config.val_dataloader.dataset = {
        'type': 'mmdet.ConcatDataset',
        'datasets': [config.val_dataloader.dataset] * 2,
    }
    truths = read_ground_truth(config, 2)
    assert [len(truth.boxes) for truth in truths] == [0, 8]


def test_does_not_change_the_config(config):
    before = config.pretty_text
    read_ground_truth(config, 1)
    assert config.pretty_text == before


@pytest.mark.parametrize('count', [0, -3])
def test_rejects_no_images(config, count):
    with pytest.raises(ValueError, match='count must be at least 1'):
        read_ground_truth(config, count)


def test_rejects_a_config_without_validation():
    with pytest.raises(ValueError, match=r'must have val_dataloader\.dataset'):
        read_ground_truth(Config({'model': {}}), 1)


def test_rejects_an_empty_set(config, tmp_path):
    (tmp_path / 'val.json').write_text(
        json.dumps({'images': [], 'annotations': [], 'categories': []})
    )
    with pytest.raises(ValueError, match='must be a data set with images'):
        read_ground_truth(config, 1)


def test_rejects_missing_data(config, tmp_path):
    (tmp_path / 'val.json').unlink()
    with pytest.raises(FileNotFoundError, match=r'val\.json'):
        read_ground_truth(config, 1)


def pair(path='x.png'):
    found = Detections(
        path=Path('x.png'),
        image=np.full((40, 40, 3), 128, np.uint8),
        boxes=np.array([[25, 5, 35, 15]], np.float32),
        scores=np.array([0.5], np.float32),
        labels=np.array([1]),
    )
    truth = GroundTruth(
        path=Path(path),
        boxes=np.array([[25, 25, 35, 35]], np.float32),
        labels=np.array([0]),
        classes=('red', 'blue'),
    )
    return found, truth


def test_comparison_has_truth_left_and_prediction_right():
    red, blue = [255, 0, 0], [0, 0, 255]
    picture = draw_comparison(
        *pair(), ('red', 'blue'), palette=[red, blue], side=400
    )
    bar = picture.shape[0] - 400
    assert bar > 0
    left, right = picture[bar:, :400], picture[bar:, -400:]
    is_red, is_blue = (left == red).all(axis=2), (right == blue).all(axis=2)
    assert is_red[230:].any()
    assert not (left == blue).all(axis=2).any()
    assert is_blue[:160].any()
    assert not (right == red).all(axis=2).any()


def test_rejects_another_image():
    with pytest.raises(ValueError, match='truth must be of the same image'):
        draw_comparison(*pair('y.png'), ('red', 'blue'))


def test_rejects_labels_without_a_name():
    with pytest.raises(ValueError, match='labels must be'):
        draw_comparison(*pair(), ('red',))
