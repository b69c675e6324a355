"""Pictures and numbers on the disk are those that were predicted."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.structures import InstanceData
from PIL import Image
from pycocotools import mask as coco_mask

from mmext.apis.drawing import GroundTruth, draw_prediction, read_ground_truth
from mmext.apis.infer import Detections
from mmext.apis.prediction_files import (
    infer_to_folder,
    prediction_to_dict,
)

CLASSES = ('cat', 'dög')


def prediction_of(masks=None):
    facts = {'path': Path('a', 'x.jpg'), 'classes': CLASSES}
    instances = InstanceData(
        bboxes=torch.tensor([[1, 2, 30.1236, 20], [5, 5, 9, 9]]),
        scores=torch.tensor([0.75, 0.1234567]),
        labels=torch.tensor([1, 0]),
    )
    if masks is not None:
        instances.masks = masks
    image = np.full((40, 60, 3), 99, np.uint8)
    return Detections(metainfo=facts, pred_instances=instances, image=image)


def test_dict_has_plain_values():
    result = prediction_to_dict(prediction_of(), Path('out/x.jpg'))
    assert result == {
        'image': str(Path('a', 'x.jpg')),
        'picture': 'out/x.jpg',
        'width': 60,
        'height': 40,
        'boxes': [[1, 2, 30.124, 20], [5, 5, 9, 9]],
        'scores': [0.75, 0.123457],
        'labels': [1, 0],
        'names': ['dög', 'cat'],
    }
    assert json.loads(json.dumps(result)) == result


def test_masks_come_back():
    masks = np.random.default_rng(0).random((2, 40, 60)) > 0.5
    result = prediction_to_dict(prediction_of(masks))
    back = [coco_mask.decode(code) for code in result['masks']]
    np.testing.assert_array_equal(np.array(back, bool), masks)
    json.dumps(result)


NUM_IMAGES = 9


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


def test_rejects_what_gives_no_images(config, tmp_path):
    with pytest.raises(ValueError, match='count must be at least 1'):
        read_ground_truth(config, 0)
    with pytest.raises(ValueError, match=r'must have val_dataloader\.dataset'):
        read_ground_truth(Config({'model': {}}), 1)
    data = tmp_path / 'val.json'
    data.write_text('{"images": [], "annotations": [], "categories": []}')
    with pytest.raises(ValueError, match='must be a data set with images'):
        read_ground_truth(config, 1)
    data.unlink()
    with pytest.raises(FileNotFoundError, match=r'val\.json'):
        read_ground_truth(config, 1)


def pair():
    facts = {'path': Path('x.png'), 'classes': ('red', 'blue')}
    detections = Detections(
        metainfo={**facts, 'palette': RED_BLUE},
        image=np.full((40, 40, 3), 128, np.uint8),
        pred_instances=InstanceData(
            bboxes=torch.tensor([[25.0, 5, 35, 15]]),
            scores=torch.tensor([0.5]),
            labels=torch.tensor([1]),
        ),
    )
    truth = GroundTruth(
        boxes=np.array([[25, 25, 35, 35]], np.float32),
        labels=np.array([0]),
        **facts,
    )
    return detections, truth


RED_BLUE = [[255, 0, 0], [0, 0, 255]]


def compare(result, truth):
    return draw_prediction(result, truth=truth, side=400)


def test_comparison_has_truth_left_and_prediction_right():
    red, blue = RED_BLUE
    picture = compare(*pair())
    bar = picture.shape[0] - 400
    assert bar > 0
    left, right = picture[bar:, :400], picture[bar:, -400:]
    is_red, is_blue = (left == red).all(axis=2), (right == blue).all(axis=2)
    assert is_red[230:].any()
    assert not (left == blue).all(axis=2).any()
    assert is_blue[:160].any()
    assert not (right == red).all(axis=2).any()


@pytest.mark.parametrize(
    'segmentation',
    [
        [[25, 25, 35, 25, 35, 30, 25, 30]],
        {'size': [40, 40], 'counts': [40 * 25 + 25, *[5, 35] * 9, 5, 210]},
    ],
)
def test_comparison_has_masks_on_both_sides(segmentation):
    result, truth = pair()
    masks = np.zeros((1, 40, 40), bool)
    masks[0, 5:10, 25:35] = True
    result.pred_instances.masks = masks
    truth = replace(truth, segmentations=(segmentation,))
    assert truth.masks(40, 40).sum() == 50
    assert truth.masks(40, 40)[0, 25:30, 25:35].all()
    assert replace(truth, segmentations=(None,)).masks(40, 40) is None
    picture = compare(result, truth)[-400:]
    # The upper half of each box is tinted, the lower one is not.
    grey = [128, 128, 128]
    left, right = picture[:, :400], picture[:, -400:]
    assert left[320, 300].tolist() == right[120, 300].tolist() == grey
    assert left[285, 300, 0] > 170 > 100 > left[285, 300, 2]
    assert right[85, 300, 2] > 170 > 100 > right[85, 300, 0]
    del result.pred_instances.masks
    plain = compare(result, truth)[-400:]
    assert plain[285, 300].tolist() == grey


@pytest.fixture
def images(finder, tmp_path):
    return [
        finder.paint(tmp_path / 'in/a.png', (64, 48), red=(5, 6, 25, 30)),
        finder.paint(tmp_path / 'in/b.png', (64, 48), blue=(9, 9, 40, 40)),
        finder.paint(tmp_path / 'in/c.png', (64, 48)),
    ]


def test_writes_a_picture_of_each_image_and_the_numbers(
    model, images, tmp_path
):
    out = tmp_path / 'out'
    report = infer_to_folder(model, images, out, score_thr=0.3)
    assert sorted(os.listdir(out)) == [
        'a.png',
        'b.png',
        'c.png',
        'predictions.json',
    ]
    content = json.loads((out / 'predictions.json').read_text())
    assert [row['image'] for row in content['images']] == [
        str(image) for image in images
    ]
    assert [row['names'] for row in content['images']] == [
        ['red'],
        ['blue'],
        [],
    ]
    assert content['score_thr'] == 0.3
    assert report.pictures == tuple(out / f'{name}.png' for name in 'abc')
    assert report.num_objects == 2
    assert report.json_path == out / 'predictions.json'
    assert report.sheet is None
    assert report.failed == ()
    assert np.array(Image.open(out / 'a.png')).shape == (480, 640, 3)


def test_rejects_predictions_in_place_of_an_image(model, images, tmp_path):
    with pytest.raises(ValueError, match='would be written over'):
        infer_to_folder(
            model,
            images,
            tmp_path / 'out',
            json_path=images[2],
        )
