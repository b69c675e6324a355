"""COCO's metrics are those of pycocotools, whatever computes them."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric as HostCocoMetric
from mmengine.fileio import dump
from pycocotools.cocoeval import COCOeval

from mmext.evaluation import CocoMetric

CLASSES = ('circle', 'square', 'star')
SIZE = (120, 160)
needs_faster = pytest.mark.skipif(
    find_spec('faster_coco_eval') is None, reason='needs faster-coco-eval'
)


def boxes(rng, number):
    """Boxes of all three sizes, as corners."""
    corners = rng.uniform(0, 60, (number, 2))
    return np.hstack((corners, corners + rng.uniform(4, 110, (number, 2))))


def sample(index, rng):
    """Annotations and predictions: near, of another class, made up."""
    number = int(rng.integers(0, 6))
    truth = boxes(rng, number)
    labels = rng.integers(0, len(CLASSES), number)
    guess = np.vstack((truth + rng.normal(0, 4, (number, 4)), boxes(rng, 20)))
    classes = np.hstack((labels, rng.integers(0, len(CLASSES), 20)))
    masks = np.zeros((len(guess), *SIZE), bool)
    for mask, (left, top, right, bottom) in zip(masks, guess.astype(int)):
        mask[max(top, 0) : bottom, max(left, 0) : right] = True
    return {
        'img_id': index,
        'ori_shape': SIZE,
        'instances': [
            {
                'bbox': box.tolist(),
                'bbox_label': int(label),
                'ignore_flag': int(rng.random() < 0.1),
                'mask': [box[[0, 1, 2, 1, 2, 3, 0, 3]].tolist()],
            }
            for box, label in zip(truth, labels)
        ],
        'pred_instances': {
            'bboxes': torch.from_numpy(guess),
            'scores': torch.from_numpy(rng.random(len(guess)).round(1)),
            'labels': torch.from_numpy(classes),
            'masks': torch.from_numpy(masks),
        },
    }


@pytest.fixture(scope='module')
def samples():
    """Twelve pictures, some without an object."""
    rng = np.random.default_rng(0)
    return [sample(index, rng) for index in range(12)]


def evaluate(kind, samples, **options):
    metric = kind(classwise=True, **options)
    metric.dataset_meta = {'classes': CLASSES}
    metric.process({}, samples)
    return metric.evaluate(len(samples))


def annotation_file(samples, path):
    """The truth of samples as a file, with the areas of the boxes halved."""
    annotations = []
    for sample in samples:
        for instance in sample['instances']:
            left, top, right, bottom = instance['bbox']
            area = (right - left) * (bottom - top) / 2
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': sample['img_id'],
                    'category_id': instance['bbox_label'],
                    'bbox': [left, top, right - left, bottom - top],
                    'area': area,
                    'iscrowd': instance['ignore_flag'],
                    'segmentation': instance['mask'],
                }
            )
    height, width = SIZE
    pictures = [
        {'id': sample['img_id'], 'height': height, 'width': width}
        for sample in samples
    ]
    names = [{'id': i, 'name': name} for i, name in enumerate(CLASSES)]
    content = {
        'info': {},
        'images': pictures,
        'annotations': annotations,
        'categories': names,
    }
    dump(content, path)
    return str(path)


@needs_faster
@pytest.mark.parametrize('metric', [['bbox', 'segm'], 'proposal'])
@pytest.mark.parametrize('of_file', [True, False], ids=['file', 'samples'])
def test_gives_the_numbers_of_pycocotools(
    samples, tmp_path, monkeypatch, metric, of_file
):
    options = {'metric': metric}
    if of_file:
        options['ann_file'] = annotation_file(samples, tmp_path / 'a.json')
    expected = evaluate(HostCocoMetric, samples, **options)
    # Not by pycocotools a second time.
    monkeypatch.setattr(COCOeval, 'evaluate', None)
    metrics = evaluate(CocoMetric, samples, **options)
    assert metrics == pytest.approx(expected, abs=0, nan_ok=True)
    assert len(metrics) >= 6
    assert max(metrics.values()) > 0.2


def test_pictures_may_have_names(samples):
    """As those of VOC files have."""
    named = [
        {**sample, 'img_id': f'cell_{sample["img_id"]:02}'}
        for sample in samples
    ]
    metrics = evaluate(CocoMetric, named)
    expected = evaluate(HostCocoMetric, samples)
    assert metrics == pytest.approx(expected, abs=0, nan_ok=True)


def test_the_first_metric_is_not_that_of_a_class(samples):
    assert next(iter(evaluate(CocoMetric, samples))) == 'coco/bbox_mAP'
