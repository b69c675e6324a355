"""LVIS's AP is that of the package ``lvis``, by recorded figures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.lvis_set import CLASSES, write_lvis
from mmdet.registry import METRICS
from mmengine.fileio import dump, load
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmext.evaluation import LVISMetric, lvis_average_precision

ORACLE = Path(__file__).parents[1] / 'oracles/lvis_ap.pt'


@pytest.fixture(scope='module')
def recorded(tmp_path_factory):
    """1,000 predictions, the LVIS file, the figures of the package."""
    content = torch.load(ORACLE, weights_only=True)
    path = tmp_path_factory.mktemp('lvis') / 'lvis.json'
    dump(content['truth'], path)
    return content, str(path)


@pytest.mark.parametrize('limit', [300, 12])
@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_gives_the_numbers_of_lvis(recorded, kind, limit):
    content, path = recorded
    assert len(content['predictions']) == 1000
    truth = COCO(path)
    totals, by_class = lvis_average_precision(
        truth,
        content['predictions'],
        sorted(truth.cats),
        iou_type=kind,
        max_dets=limit,
    )
    expected = content['figures'][f'{kind} {limit}']
    assert list(totals) == list(expected)
    assert totals == pytest.approx(expected, abs=1e-12)
    mean = np.mean([row['AP'] for row in by_class])
    assert mean == pytest.approx(expected['AP'], abs=1e-12)


def feed(metric, content, label=None):
    """Hand a metric the predictions, with one label for all if it is given."""
    for own in range(1, 41):
        rows = [r for r in content['predictions'] if r['image_id'] == own]
        boxes = torch.tensor([row['bbox'] for row in rows]).double()
        boxes[:, 2:] += boxes[:, :2]
        outlines = [row['segmentation'] for row in rows]
        sample = {
            'img_id': own,
            'ori_shape': (200, 200),
            'pred_instances': {
                'bboxes': boxes,
                'scores': torch.tensor([row['score'] for row in rows]),
                'labels': torch.tensor(
                    [
                        r['category_id'] - 1 if label is None else label
                        for r in rows
                    ]
                ),
                'masks': outlines,
            },
        }
        metric.process({}, [sample])


def test_metric_reads_samples(recorded):
    content, path = recorded
    metric = METRICS.build(
        {
            'type': 'mmext.LVISMetric',
            'ann_file': path,
            'metric': ['bbox', 'segm'],
            'classwise': True,
        }
    )
    feed(metric, content)
    got = metric.evaluate(40)
    for kind in ('bbox', 'segm'):
        for name, value in content['figures'][f'{kind} 300'].items():
            key = f'lvis/{kind}_{name}'
            assert got[key] == pytest.approx(value, abs=2e-3), key
        assert f'lvis/{kind}_kind 3_precision' in got
    assert next(iter(got)) == 'lvis/bbox_AP'


@pytest.mark.parametrize('limit', [300, 12])
def test_proposals(recorded, limit):
    """Average recall without categories, as pycocotools computes it."""
    content, path = recorded
    truth = COCO(path)
    for annotation in truth.anns.values():
        annotation['iscrowd'] = 0
    rows = [
        {key: row[key] for key in ('image_id', 'bbox', 'score')}
        for row in content['predictions']
    ]
    found = truth.loadRes([{**row, 'category_id': 1} for row in rows])
    run = COCOeval(truth, found, 'bbox')
    run.params.useCats = 0
    run.params.maxDets = [limit]
    run.evaluate()
    run.accumulate()
    recall = run.eval['recall'][:, 0, :, 0].mean(0)
    metric = LVISMetric(path, 'proposal', max_dets=limit, classwise=True)
    feed(metric, content, label=0)
    got = metric.evaluate(40)
    names = [f'lvis/AR{size}@{limit}' for size in ('', 's', 'm', 'l')]
    assert got == pytest.approx(dict(zip(names, recall)), abs=6e-4)
    assert 0 < min(got.values()) < max(got.values()) < 1


def test_labels_have_the_order_of_the_file(recorded, tmp_path):
    """As MMDetection's data set numbers them, which has no cat_ids."""
    content, path = recorded
    truth = load(path)
    truth['categories'].reverse()
    path = str(tmp_path / 'reversed.json')
    dump(truth, path)
    metric = LVISMetric(path)
    last = len(truth['categories']) - 1
    rows = [
        {**row, 'category_id': last - row['category_id'] + 2}
        for row in content['predictions']
    ]
    feed(metric, {'predictions': rows})
    figures = content['figures']['bbox 300']
    assert metric.evaluate(40)['lvis/bbox_AP'] == pytest.approx(
        figures['AP'], abs=6e-4
    )


def test_rejects_what_is_not_of_lvis(tmp_path):
    path = write_lvis(tmp_path)
    with pytest.raises(ValueError, match='metric must be of'):
        LVISMetric(path, metric='proposal_fast')
    content = load(path)
    del content['images'][2]['neg_category_ids']
    dump(content, path)
    with pytest.raises(ValueError, match=r"images lack \['neg_category_ids'"):
        LVISMetric(path)


def test_without_predictions(tmp_path):
    metric = LVISMetric(write_lvis(tmp_path))
    metric.dataset_meta = {'classes': CLASSES, 'cat_ids': (3, 5, 7, 9)}
    nothing = {
        'bboxes': torch.zeros(0, 4),
        'scores': torch.zeros(0),
        'labels': torch.zeros(0, dtype=torch.long),
    }
    for own in range(1, 7):
        sample = {'img_id': own, 'ori_shape': (96, 96)}
        metric.process({}, [{**sample, 'pred_instances': nothing}])
    got = metric.evaluate(6)
    assert got['lvis/bbox_APr'] == got['lvis/bbox_APf'] == 0
