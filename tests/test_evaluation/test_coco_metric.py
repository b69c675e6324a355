"""COCO's metrics are those of pycocotools, whatever computes them."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric as HostCocoMetric
from mmengine.fileio import dump, load
from pycocotools.cocoeval import COCOeval

from mmext.evaluation import CocoMetric, box_metrics

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


def annotation_file(samples, path, ids=(0, 1, 2)):
    """The truth of samples as a file, with the areas of the boxes halved.

    ``ids`` are those of the categories, in the order of the classes.
    """
    annotations = []
    for sample in samples:
        for instance in sample['instances']:
            left, top, right, bottom = instance['bbox']
            area = (right - left) * (bottom - top) / 2
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': sample['img_id'],
                    'category_id': ids[instance['bbox_label']],
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
    names = [{'id': i, 'name': name} for i, name in zip(ids, CLASSES)]
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


@pytest.fixture(params=[True, False], ids=['faster', 'pycocotools'])
def evaluation(request, monkeypatch):
    """With and without faster-coco-eval."""
    if request.param:
        pytest.importorskip('faster_coco_eval')
    else:
        monkeypatch.setattr(box_metrics, 'find_spec', lambda name: None)


@pytest.mark.usefixtures('evaluation')
@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_categories_in_no_order_of_ids(samples, tmp_path, kind):
    """Each class has its own values, in each of two validations."""
    path = annotation_file(samples, tmp_path / 'sorted.json')
    expected = evaluate(HostCocoMetric, samples, ann_file=path, metric=kind)
    path = annotation_file(samples, tmp_path / 'a.json', ids=(9, 2, 5))
    metric = CocoMetric(path, kind, classwise=True)
    metric.dataset_meta = {'classes': CLASSES}
    for _ in range(2):
        metric.process({}, samples)
        metrics = metric.evaluate(len(samples))
        assert metrics == pytest.approx(expected, abs=0, nan_ok=True)
    values = [expected[f'coco/{name}_precision'] for name in CLASSES]
    assert len(set(values)) == 3


def test_categories_of_a_file_of_predictions(samples, tmp_path):
    path = annotation_file(samples, tmp_path / 'a.json', ids=(9, 2, 5))
    options = {'format_only': True, 'outfile_prefix': str(tmp_path / 'out')}
    assert evaluate(CocoMetric, samples, ann_file=path, **options) == {}
    labels = [sample['pred_instances']['labels'] for sample in samples]
    assert [
        row['category_id'] for row in load(tmp_path / 'out.bbox.json')
    ] == [(9, 2, 5)[label] for label in torch.cat(labels)]


@pytest.mark.usefixtures('evaluation')
def test_what_an_annotation_may_lack(samples, tmp_path):
    """Without iscrowd it is not a crowd; without an area, an error."""
    path = annotation_file(samples, tmp_path / 'a.json')
    expected = evaluate(HostCocoMetric, samples, ann_file=path)
    content = load(path)
    for annotation in content['annotations']:
        if not annotation['iscrowd']:
            del annotation['iscrowd']
    dump(content, path)
    metrics = evaluate(CocoMetric, samples, ann_file=path)
    assert metrics == pytest.approx(expected, abs=0, nan_ok=True)
    del content['annotations'][2]['area']
    dump(content, path)
    with pytest.raises(
        ValueError, match=r"a\.json' must have an area .* id 3;"
    ):
        CocoMetric(path)
