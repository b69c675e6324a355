"""Numbers on the disk are those that were found."""

import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from mmext.apis.infer import Detections
from mmext.apis.predictions import (
    detections_to_dict,
    draw_detections,
    write_predictions,
)

CLASSES = ('cat', 'dög')


def found(masks=None):
    return Detections(
        path=Path('a', 'x.jpg'),
        image=np.full((40, 60, 3), 99, np.uint8),
        boxes=np.array([[1, 2, 30.1236, 20], [5, 5, 9, 9]], np.float32),
        scores=np.array([0.75, 0.1234567], np.float32),
        labels=np.array([1, 0]),
        masks=masks,
    )


def test_dict_has_plain_values():
    result = detections_to_dict(found(), CLASSES, picture='out/x.jpg')
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
    result = detections_to_dict(found(masks), CLASSES)
    back = [coco_mask.decode(code) for code in result['masks']]
    np.testing.assert_array_equal(np.array(back, bool), masks)
    json.dumps(result)


def test_file_holds_everything(tmp_path):
    path = tmp_path / 'new' / 'p.json'
    row = detections_to_dict(found(), CLASSES)
    for score_thr in (0.1, 0.2):
        write_predictions(
            path,
            [row],
            classes=CLASSES,
            score_thr=score_thr,
            failed=[{'image': 'b.jpg', 'reason': 'cut off'}],
        )
    assert json.loads(path.read_text(encoding='utf-8')) == {
        'classes': ['cat', 'dög'],
        'score_thr': 0.2,
        'images': [row],
        'failed': [{'image': 'b.jpg', 'reason': 'cut off'}],
    }


def test_drawing_chooses_sizes():
    assert draw_detections(found(), CLASSES).shape == (400, 600, 3)
    small = draw_detections(found(), CLASSES, side=30)
    assert small.shape == (20, 30, 3)


def test_rejects_labels_without_a_name():
    with pytest.raises(ValueError, match='labels must be'):
        draw_detections(found(), CLASSES[:1])
