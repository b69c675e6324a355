"""Metrics of boxes: by hand, and against pycocotools."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmengine.fileio import dump
from mmengine.structures import InstanceData
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmext.evaluation import (
    ERROR_KINDS,
    average_precision,
    box_metrics,
    calibration,
    judge_boxes,
    lost_precision,
)

ORACLES = Path(__file__).parents[1] / 'oracles'


def truth_of(*rows, ignored=()):
    """Rows are ``(label, x1, y1, x2, y2)``."""
    table = np.array(rows, np.float32).reshape(-1, 5)
    flags = np.isin(np.arange(len(rows)), ignored)
    return InstanceData(
        bboxes=table[:, 1:], labels=table[:, 0].astype(int), ignored=flags
    )


def pred_of(*rows):
    """Rows are ``(label, x1, y1, x2, y2, score)``."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return InstanceData(
        bboxes=table[:, 1:5],
        labels=table[:, 0].astype(int),
        scores=table[:, 5],
    )


def kinds(truth, pred):
    judged = judge_boxes(truth, pred)
    errors = [(error.kind, error.label) for error in judged.errors]
    return int(judged.right.sum()), errors


BOX, LOW, FAR = (0, 0, 20, 20), (0, 0, 20, 9), (50, 50, 70, 70)


@pytest.mark.parametrize(
    ('truth', 'pred', 'wanted'),
    [
        ([], [], (0, [])),
        ([(1, *BOX)], [], (0, [('missed', 1)])),
        ([], [(1, *BOX, 0.5)], (0, [('background', 1)])),
        ([(1, *BOX)], [(1, *BOX, 0.5)], (1, [])),
        ([(1, *BOX)], [(0, *BOX, 0.5)], (0, [('classification', 0)])),
        # Less than half, and nothing else is wrong with the first.
        (
            [(1, *BOX)],
            [(1, *LOW, 0.5), (0, *LOW, 0.4)],
            (0, [('localization', 1), ('both', 0)]),
        ),
        # Less than a tenth.
        (
            [(1, *BOX)],
            [(1, 0, 0, 20, 1.9, 0.5)],
            (0, [('missed', 1), ('background', 1)]),
        ),
        # The own class wins, though its score is lower.
        (
            [(1, *BOX)],
            [(0, *BOX, 0.9), (1, *BOX, 0.1)],
            (1, [('classification', 0)]),
        ),
        # Two objects in one place need two boxes.
        (
            [(1, *BOX), (1, *BOX)],
            [(1, *BOX, 0.9), (1, *BOX, 0.8)],
            (2, []),
        ),
        # By score: the first box gets the object that it meets best, and the
        # second none, though it meets that one only.
        (
            [(1, 0, 0, 20, 20), (1, 0, 6, 20, 26)],
            [(1, 0, 2, 20, 22, 0.9), (1, 0, 0, 20, 15, 0.3)],
            (1, [('missed', 1), ('duplicate', 1)]),
        ),
    ],
)
def test_each_box_is_of_one_kind(truth, pred, wanted):
    assert kinds(truth_of(*truth), pred_of(*pred)) == wanted


def test_ignored_objects_do_not_count():
    crowd = truth_of((1, *BOX), (1, *FAR), ignored=[0])
    inside = pred_of((1, 2, 2, 6, 6, 0.9), (0, 2, 2, 6, 6, 0.8))
    # As COCO has it, only boxes of the class of the crowd.
    assert kinds(crowd, inside) == (0, [('missed', 1), ('background', 0)])
    judged = judge_boxes(crowd, inside)
    assert judged.pred.counted.tolist() == [False, True]
    assert judged.pairs.tolist() == [[-1, 0], [1, -1]]


def test_the_best_score_wins():
    judged = judge_boxes(
        truth_of((1, *BOX)), pred_of((1, *BOX, 0.5), (1, 0, 0, 20, 19, 0.6))
    )
    assert judged.pred.scores.tolist() == pytest.approx([0.6, 0.5])
    assert judged.right.tolist() == [True, False]
    (error,) = judged.errors
    assert (error.kind, error.truth_box) == ('duplicate', BOX)


@pytest.mark.parametrize('score', [float('nan'), 1.5])
def test_refuses_what_is_no_score(score):
    with pytest.raises(ValueError, match=r'scores in \[0, 1\], got'):
        judge_boxes(truth_of(), pred_of((1, *BOX, score)))


def test_errors_and_what_they_cost_are_those_of_tidecv():
    """Crowds, equal scores, classes without objects, too many boxes."""
    recorded = torch.load(ORACLES / 'tide.pt')
    judged = []
    for image in range(50):
        rows = (recorded[name].numpy() for name in ('objects', 'boxes'))
        truth, pred = (
            InstanceData(
                bboxes=np.hstack((own[:, 2:4], own[:, 2:4] + own[:, 4:6])),
                labels=own[:, 1].astype(int),
                scores=own[:, 6],
            )
            for own in (item[item[:, 0] == image] for item in rows)
        )
        truth.ignored = truth.scores > 0
        judged.append(judge_boxes(truth, pred))
    *kinds, positive, negative = lost_precision(judged, 14).items()
    assert tuple(kind for kind, _ in kinds) == ERROR_KINDS
    names = ('Cls', 'Loc', 'Both', 'Dupe', 'Bkg', 'Miss')
    for name, (_, value) in zip(
        (*names, 'FalsePos', 'FalseNeg'), (*kinds, positive, negative)
    ):
        assert 100 * value == pytest.approx(
            recorded['figures'][name], abs=1e-6
        )
        assert value > 0
    best = [item.best(100) for item in judged]
    kinds = np.concatenate([item.pred.kinds for item in best]).tolist()
    kinds += ['missed'] * sum(item.missed.sum() for item in best)
    assert [kinds.count(kind) for kind in ERROR_KINDS] == [
        recorded['counts'][name] for name in names
    ]


NAMES = ('one', 'two', 'three', 'never')


def random_data(rng):
    """A COCO file with crowds, and samples of a test."""
    content = {'images': [], 'annotations': [], 'categories': []}
    for label, name in enumerate(NAMES):
        content['categories'].append({'id': 5 * label + 1, 'name': name})
    samples = []
    for image_id in range(12):
        size = {'height': 160, 'width': 160}
        content['images'].append({'id': image_id, **size})
        corners = rng.uniform(0, 60, (25, 2))
        sides = rng.uniform(4, 200, (25, 2))
        labels = rng.integers(0, 3, 25)
        for n in range(rng.integers(0, 6)):
            content['annotations'].append(
                {
                    'id': len(content['annotations']) + 1,
                    'image_id': image_id,
                    'category_id': 5 * int(labels[n]) + 1,
                    'bbox': [*corners[n].tolist(), *sides[n].tolist()],
                    'area': float(sides[n].prod()) / 2,
                    'iscrowd': int(rng.random() < 0.1),
                }
            )
        boxes = np.hstack((corners, corners + sides))
        pred = {
            'bboxes': torch.from_numpy(boxes + rng.normal(0, 3, (25, 4))),
            'scores': torch.from_numpy(rng.random(25).round(1)),
            'labels': torch.from_numpy(labels),
        }
        sample = {'img_id': image_id, 'ori_shape': (160, 160)}
        samples.append({**sample, 'pred_instances': pred})
    return content, samples


def as_rows(samples):
    """Predictions as a COCO file has them."""
    rows = []
    for sample in samples:
        pred = sample['pred_instances']
        corners = pred['bboxes'].numpy()
        sides = np.hstack((corners[:, :2], corners[:, 2:] - corners[:, :2]))
        for box, score, label in zip(sides, pred['scores'], pred['labels']):
            rows.append(
                {
                    'image_id': sample['img_id'],
                    'category_id': 5 * int(label) + 1,
                    'bbox': box.tolist(),
                    'score': float(score),
                }
            )
    return rows


@pytest.mark.parametrize('faster', [True, False])
def test_average_precision_is_that_of_mmdet(tmp_path, monkeypatch, faster):
    """With areas of outlines, crowds, and a class that never occurs."""
    if faster:
        pytest.importorskip('faster_coco_eval')
    else:
        monkeypatch.setattr(box_metrics, 'find_spec', lambda name: None)
    content, samples = random_data(np.random.default_rng(0))
    dump(content, tmp_path / 'a.json')
    metric = CocoMetric(str(tmp_path / 'a.json'), classwise=True)
    metric.dataset_meta = {'classes': NAMES}
    metric.process({}, samples)
    theirs = metric.evaluate(len(samples))
    rows = as_rows(samples)
    totals, by_class = average_precision(content, rows, metric.cat_ids)
    for name, ours in totals.items():
        assert ours == pytest.approx(theirs[f'coco/bbox_{name}'], abs=5e-4)
    for name, ours in zip(NAMES[:3], by_class):
        expected = theirs[f'coco/{name}_precision']
        assert ours['AP'] == pytest.approx(expected, abs=5e-4)
        assert 0 < ours['AP_75'] < ours['AP_50'] < 1
        assert np.mean(ours['precision']) == pytest.approx(ours['AP_50'])
    assert set(by_class[3].values()) == {None}


def data_in_any_order(seed):
    """A COCO file with ids in no order, and predictions with equal scores."""
    rng = np.random.default_rng(seed)
    cat_ids = rng.permutation(50)[: rng.integers(2, 6)].tolist()
    image_ids = rng.permutation(1000)[: rng.integers(3, 10)].tolist()
    annotations, rows = [], []
    for image_id in image_ids:
        for _ in range(rng.integers(1, 6)):
            box = np.hstack((rng.uniform(0, 200, 2), rng.uniform(4, 200, 2)))
            own = {'image_id': image_id, 'bbox': box.tolist()}
            own['category_id'] = int(rng.choice(cat_ids))
            annotations.append(
                {
                    **own,
                    'id': len(annotations) + 1,
                    'area': float(box[2:].prod()) * 0.6,
                    'iscrowd': int(rng.random() < 0.15),
                }
            )
            for _ in range(rng.integers(1, 4)):
                near = (box + rng.normal(0, 4, 4)).tolist()
                rows.append({**own, 'bbox': near})
                rows[-1]['score'] = round(rng.random(), 1)
                if rng.random() < 0.2:
                    rows[-1]['category_id'] = int(rng.choice(cat_ids))
    rng.shuffle(annotations)
    rng.shuffle(rows)
    sizes = {'height': 400, 'width': 400}
    content = {
        'images': [{'id': own, **sizes} for own in image_ids],
        'categories': [{'id': own, 'name': f'{own}'} for own in cat_ids],
        'annotations': annotations,
    }
    return content, rows, cat_ids


def by_pycocotools(content, rows):
    """COCO's own evaluation, with the limits of boxes of MMDetection."""
    truth = COCO()
    truth.dataset = copy.deepcopy(content)
    truth.createIndex()
    run = COCOeval(truth, truth.loadRes(copy.deepcopy(rows)), 'bbox')
    run.params.maxDets = [100, 300, 1000]
    run.evaluate()
    run.accumulate()
    run.summarize()
    return run


def mean(values):
    """As COCO takes it: of what is known, and -1 for nothing."""
    values = values[values > -1]
    return values.mean() if values.size else -1


@pytest.mark.parametrize('named', [False, True], ids=['numbers', 'names'])
@pytest.mark.parametrize('faster', [True, False])
def test_average_precision_is_that_of_pycocotools(monkeypatch, faster, named):
    """Ties, crowds, areas, ids of images and of categories in any order."""
    if faster:
        pytest.importorskip('faster_coco_eval')
    else:
        monkeypatch.setattr(box_metrics, 'find_spec', lambda name: None)
    for seed in range(25):
        content, rows, cat_ids = data_in_any_order(seed)
        if named:
            for item in content['images']:
                item['id'] = f'{item["id"]:04}'
            for item in (*content['annotations'], *rows):
                item['image_id'] = f'{item["image_id"]:04}'
        before = copy.deepcopy((content, rows))
        totals, by_class = average_precision(content, rows, cat_ids)
        assert before == (content, rows)
        run = by_pycocotools(content, rows)
        values = [-1 if own is None else own for own in totals.values()]
        assert values == pytest.approx(run.stats[:6], abs=1e-12)
        for own, item in zip(cat_ids, by_class):
            k = run.params.catIds.index(own)
            precision = run.eval['precision'][:, :, k, :, -1]
            recall = run.eval['recall'][:, k, :, -1]
            expected = {
                'AP': mean(precision[..., 0]),
                'AP_50': mean(precision[0, :, 0]),
                'AP_75': mean(precision[5, :, 0]),
                'AP_s': mean(precision[..., 1]),
                'AP_m': mean(precision[..., 2]),
                'AP_l': mean(precision[..., 3]),
                'AR': mean(recall[:, 0]),
                'AR_s': mean(recall[:, 1]),
                'AR_m': mean(recall[:, 2]),
                'AR_l': mean(recall[:, 3]),
            }
            for name, value in expected.items():
                ours = -1 if item[name] is None else item[name]
                assert ours == pytest.approx(value, abs=1e-12), (seed, name)


@pytest.mark.parametrize('faster', [True, False])
def test_what_an_annotation_may_lack(monkeypatch, faster):
    """No iscrowd means no crowd, as for loaders; an area has to be there."""
    if faster:
        pytest.importorskip('faster_coco_eval')
    else:
        monkeypatch.setattr(box_metrics, 'find_spec', lambda name: None)
    content, rows, cat_ids = data_in_any_order(0)
    for item in content['annotations']:
        item['iscrowd'] = 0
    expected = average_precision(content, rows, cat_ids)
    del content['annotations'][1]['iscrowd']
    content['annotations'][2]['iscrowd'] = None
    assert average_precision(content, rows, cat_ids) == expected
    own = content['annotations'][3]
    del own['area']
    message = f'must have an area .* none for the .* id {own["id"]};.* --fix'
    with pytest.raises(ValueError, match=message):
        average_precision(content, rows, cat_ids)


def test_no_prediction():
    truth = {
        'images': [{'id': 3, 'height': 9, 'width': 9}],
        'categories': [{'id': 1, 'name': 'one'}],
        'annotations': [
            {'id': 1, 'image_id': 3, 'category_id': 1, 'bbox': [0, 0, 9, 9]}
            | {'area': 81, 'iscrowd': 0}
        ],
    }
    totals, (metrics,) = average_precision(truth, [], [1])
    assert totals['mAP'] == metrics['AP'] == 0
    assert metrics['F1'] is None
    assert average_precision({**truth, 'annotations': []}, [], [1])[
        0
    ] == dict.fromkeys(totals)


def test_calibration_by_hand():
    truth = truth_of((1, *BOX), (1, *FAR))
    pred = pred_of((1, *BOX, 1.0), (1, *FAR, 0.55), (0, 0, 40, 9, 49, 0.52))
    judged = judge_boxes(truth, pred)
    result = calibration(judged.pred.scores, judged.right)
    counts = [item['count'] for item in result['bins']]
    assert counts == [0, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    half = result['bins'][5]
    assert (half['low'], half['high']) == pytest.approx((0.5, 0.6))
    assert half['score'] == pytest.approx(0.535)
    assert half['right'] == 0.5
    assert result['error'] == pytest.approx((2 * 0.035 + 0) / 3)
    none = np.zeros(0)
    assert calibration(none, none)['error'] is None


@pytest.mark.parametrize('kind', [np.float64, np.float32])
def test_calibration_at_the_limits_of_bins(kind):
    """A score belongs to the bin that begins with it; 1 to the last one."""
    scores = np.array([f'{n / 10}' for n in range(11)], kind)
    result = calibration(scores, np.arange(11) % 2 == 0)
    bins = result['bins']
    assert [item['count'] for item in bins] == [1] * 9 + [2]
    assert [(item['low'], item['high']) for item in bins] == [
        (n / 10, (n + 1) / 10) for n in range(10)
    ]
    for item in bins[:9]:
        assert item['score'] == pytest.approx(item['low'], abs=1e-7)
    # The last bin has 0.9, which is wrong, and 1, which is right.
    wrong = [1, 0.1, 0.8, 0.3, 0.6, 0.5, 0.4, 0.7, 0.2, 2 * 0.45]
    assert result['error'] == pytest.approx(sum(wrong) / 11, abs=1e-6)
