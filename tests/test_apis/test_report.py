"""Reports of tests, through the tool, on predictions that are known."""

import base64
import json
import re

import cv2
import numpy as np
import pytest
from helpers import recited
from helpers.toy_ranks import load_tool, start_ranks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmext.apis import ReportMetric

CLASSES = ('cat', 'dog')
CAT, DOG = range(2)
TRUTH = {
    'all.png': [
        (CAT, 5, 5, 35, 35),
        (CAT, 60, 5, 90, 35),
        (DOG, 5, 50, 35, 80),
        (DOG, 60, 50, 90, 80),
    ],
    'fine.png': [(DOG, 10, 10, 40, 40)],
    'none.png': [],
}
TOLD = {
    'all.png': [
        (CAT, 5, 5, 35, 34, 0.92),
        # The same object once more, by a box that is better.
        (CAT, 5, 5, 35, 35, 0.82),
        (CAT, 5, 50, 35, 79, 0.72),
        (DOG, 95, 5, 115, 25, 0.62),
        (DOG, 60, 50, 90, 80, 0.52),
        (DOG, 95, 60, 115, 80, 0.12),
    ],
    'fine.png': [(DOG, 10, 10, 40, 40, 0.97)],
}


@pytest.fixture(scope='module')
def location(tmp_path_factory):
    """Data, config and checkpoint, and the report of the tool."""
    folder = tmp_path_factory.mktemp('recited')
    config = recited.write_detection(folder, TRUTH, TOLD, CLASSES)
    checkpoint = recited.write_checkpoint(folder)
    work_dir = ('--work-dir', str(folder / 'w'))
    args = [str(config), str(checkpoint), *work_dir]
    assert load_tool('test').main([*args, '--report', str(folder / 'r')]) == 0
    return folder


@pytest.fixture
def report(location):
    """What the tool wrote."""
    return json.loads((location / 'r/report.json').read_text())


def test_one_error_of_each_kind_is_counted_and_listed(report):
    assert report['counts'] == {
        'right': 3,
        'missed': 1,
        'duplicate': 1,
        'classification': 1,
        'localization': 0,
        'both': 0,
        'background': 1,
    }
    (worst,) = report['pictures']
    assert worst.pop('image').endswith('all.png')
    errors = worst.pop('errors')
    assert worst == {**report['counts'], 'right': 2}
    plain = {'score': None, 'truth_box': None, 'truth_class': None}
    cat, dog = [5, 5, 35, 35], [5, 50, 35, 80]
    assert errors == [
        {**plain, 'kind': 'missed', 'box': [60, 5, 90, 35], 'class': 'cat'},
        {'kind': 'duplicate', 'box': cat, 'class': 'cat'}
        | {
            'score': pytest.approx(0.82),
            'truth_box': cat,
            'truth_class': 'cat',
        },
        {'kind': 'classification', 'box': [5, 50, 35, 79], 'class': 'cat'}
        | {
            'score': pytest.approx(0.72),
            'truth_box': dog,
            'truth_class': 'dog',
        },
        {
            **plain,
            'kind': 'background',
            'box': [95, 5, 115, 25],
            'class': 'dog',
        }
        | {'score': pytest.approx(0.62)},
    ]


def test_the_matrix_and_the_counts_of_classes_agree(report):
    assert report['confusion']['classes'] == ['cat', 'dog', 'background']
    assert recited.matrix(report) == [[1, 0, 1], [1, 2, 0], [1, 1, 0]]
    names = ['objects', 'right', 'missed', 'duplicate', 'classification']
    names += ['localization', 'both', 'background']
    assert [[row[name] for name in names] for row in report['per_class']] == [
        [2, 1, 1, 1, 0, 0, 0, 0],
        [3, 2, 0, 0, 1, 0, 0, 1],
    ]


def test_metrics_are_those_of_mmdet(report):
    summary, metrics = report['summary'], report['metrics']
    for name in ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l'):
        theirs = metrics[f'coco/bbox_{name}']
        ours = summary[name]
        assert (-1 if ours is None else ours) == pytest.approx(
            theirs, abs=5e-4
        )
    for row in report['per_class']:
        theirs = metrics[f'coco/{row["class"]}_precision']
        assert row['AP'] == pytest.approx(theirs, abs=5e-4)
    assert 0 < summary['mAP_75'] < 1
    cat, dog = report['per_class']
    # Half of the cats by the first box; dogs by the first and the fourth.
    assert cat['precision'] == [1.0] * 51 + [0.0] * 50
    assert dog['precision'] == pytest.approx(
        [1.0] * 34 + [2 / 3] * 33 + [0] * 34, abs=1e-4
    )
    assert (cat['F1'], cat['F1_score']) == pytest.approx(
        (2 / 3, 0.92), abs=0.01
    )


def test_calibration_takes_all_scores(report):
    bins = report['calibration']['bins']
    assert [bin_['count'] for bin_ in bins] == [0, 1, 0, 0, 0, 1, 1, 1, 1, 2]
    shares = {bin_['low']: bin_['right'] for bin_ in bins if bin_['count']}
    assert list(shares.values()) == [0, 1, 0, 0, 0, 1]
    wrong = 0.12 + 0.48 + 0.62 + 0.72 + 0.82 + 0.08 + 0.03
    assert report['calibration']['error'] == pytest.approx(wrong / 7, abs=1e-6)


@pytest.mark.slow
@pytest.mark.xdist_group('processes')
def test_two_processes_and_a_metric_that_is_not_of_coco(tmp_path, report):
    """Each picture once, and areas of boxes in the place of outlines."""
    voc = "dict(type='VOCMetric', eval_mode='area')"
    config = recited.write_detection(tmp_path, TRUTH, TOLD, CLASSES, voc)
    ranks = start_ranks(
        [
            *(config, recited.write_checkpoint(tmp_path)),
            *('--work-dir', tmp_path / 'w', '--report', tmp_path / 'r'),
            *('--cfg-options', 'test_dataloader.batch_size=1'),
        ],
        2,
        tmp_path / 'log',
        tool='test',
    )
    assert ranks.wait() == [0, 0], ranks.output()
    content = json.loads((tmp_path / 'r/report.json').read_text())
    assert content['metrics'].keys() == {'pascal_voc/mAP', 'pascal_voc/AP50'}
    assert content['images'] == 3
    for name in ('counts', 'confusion', 'calibration', 'per_class'):
        assert content[name] == report[name]


@pytest.mark.slow
def test_a_metric_without_a_file(tmp_path, report):
    """Its truth is that of the samples; ids of pictures may be names."""
    metric = "dict(type='mmext.CocoMetric', classwise=True)"
    config = recited.write_detection(tmp_path, TRUTH, TOLD, CLASSES, metric)
    content = json.loads((tmp_path / 'truth.json').read_text())
    for image in content['images']:
        image['id'] = f'picture {image["id"]}'
    for image in content['annotations']:
        image['image_id'] = f'picture {image["image_id"]}'
    (tmp_path / 'truth.json').write_text(json.dumps(content))
    args = [str(config), str(recited.write_checkpoint(tmp_path))]
    args += ['--work-dir', str(tmp_path / 'w'), '--report', str(tmp_path)]
    assert load_tool('test').main(args) == 0
    results = json.loads((tmp_path / 'report.json').read_text())
    for name in ('counts', 'confusion', 'calibration', 'per_class', 'metrics'):
        assert results[name] == report[name]


CATS, DOGS, NOWHERE = (5, 5, 35, 35), (60, 5, 90, 35), (50, 50, 70, 70)
OURS = (
    "dict(type='mmext.CocoMetric', ann_file={root!r} + '/metric.json', "
    'classwise=True)'
)


def test_ids_in_any_order(tmp_path):
    """Each class has its own values; equal scores go by the image's id."""
    pair = [(CAT, *CATS), (DOG, *DOGS)]
    truth = {f'{name}.png': pair for name in 'abcd'}
    told = {
        'a.png': [(CAT, *CATS, 0.7), (DOG, *DOGS, 0.6)],
        'b.png': [(CAT, *NOWHERE, 0.7), (DOG, *NOWHERE, 0.6)],
        'c.png': [(CAT, *CATS, 0.7)],
        'd.png': [
            (CAT, *NOWHERE, 0.7),
            (DOG, *DOGS, 0.6),
            (DOG, *NOWHERE, 0.3),
        ],
    }
    config = recited.write_detection(tmp_path, truth, told, CLASSES, OURS)
    content = json.loads((tmp_path / 'truth.json').read_text())
    image_ids, cat_ids = (40, 3, 21, 8), (9, 4)
    for index, image in enumerate(content['images']):
        image['id'] = image_ids[index]
    for label, category in enumerate(content['categories']):
        category['id'] = cat_ids[label]
    for index, annotation in enumerate(content['annotations']):
        annotation['image_id'] = image_ids[index // 2]
        annotation['category_id'] = cat_ids[index % 2]
        del annotation['iscrowd']
    for name in ('truth', 'metric'):
        (tmp_path / f'{name}.json').write_text(json.dumps(content))
    args = [str(config), str(recited.write_checkpoint(tmp_path))]
    args += ['--work-dir', str(tmp_path / 'w'), '--report', str(tmp_path)]
    assert load_tool('test').main(args) == 0
    report = json.loads((tmp_path / 'report.json').read_text())
    for annotation in content['annotations']:
        annotation['iscrowd'] = 0
    theirs = COCO()
    theirs.dataset = content
    theirs.createIndex()
    rows = [
        {
            'image_id': image_id,
            'category_id': cat_ids[label],
            'bbox': [x1, y1, x2 - x1, y2 - y1],
            'score': score,
        }
        for image_id, items in zip(image_ids, told.values())
        for label, x1, y1, x2, y2, score in items
    ]
    run = COCOeval(theirs, theirs.loadRes(rows), 'bbox')
    run.params.maxDets = [100, 300, 1000]
    run.evaluate()
    run.accumulate()
    run.summarize()
    values = [-1 if own is None else own for own in report['summary'].values()]
    assert values == pytest.approx(run.stats[:6], abs=1e-9)
    assert report['metrics']['coco/bbox_mAP'] == round(run.stats[0], 3)
    dog, cat = run.eval['precision'][:, :, :, 0, -1].mean((0, 1))
    assert 0.2 < cat < dog < 0.7
    for row, expected in zip(report['per_class'], (cat, dog)):
        metric = report['metrics'][f'coco/{row["class"]}_precision']
        assert metric == round(expected, 3)
        assert row['AP'] == pytest.approx(expected, abs=1e-9)
    assert [row['right'] for row in report['per_class']] == [2, 2]
    assert recited.matrix(report) == [[2, 0, 2], [0, 2, 2], [2, 2, 0]]
    bins = report['calibration']['bins']
    counts = {item['low']: item['count'] for item in bins if item['count']}
    assert counts == {0.3: 1, 0.6: 3, 0.7: 4}
    del content['annotations'][2]['area']
    (tmp_path / 'metric.json').write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"metric\.json' must have an area"):
        load_tool('test').main(args)


@pytest.fixture(scope='module')
def of_maps(tmp_path_factory):
    """The report of a segmentor: one picture has errors, one has no label."""
    folder = tmp_path_factory.mktemp('maps')
    right = np.zeros((20, 30), np.uint8)
    right[:10] = 1
    truth, told = right.copy(), right.copy()
    truth[0] = 255
    told[5:10] = 2
    told[15:, :3] = 1
    void = np.full_like(right, 255)
    maps = {'fine': (right, right), 'wrong': (truth, told)}
    maps['void'] = void, right
    config = recited.write_segmentation(
        folder, maps, ('road', 'car', PLANTED, 'never')
    )
    args = [str(config), str(recited.write_checkpoint(folder))]
    args += ['--work-dir', str(folder / 'w'), '--report', str(folder / 'r')]
    assert load_tool('test').main(args) == 0
    return folder / 'r'


PLANTED = '<script>planted = 1</script>'


def test_metrics_of_a_segmentor(of_maps):
    report = json.loads((of_maps / 'report.json').read_text())
    # Ground truth in rows; the ignored line is nowhere.
    matrix = [[585, 15, 0, 0], [0, 420, 150, 0], [0] * 4, [0] * 4]
    assert recited.matrix(report) == matrix
    road, car, planted, never = report['per_class']
    assert road['IoU'] == pytest.approx(585 / 600)
    assert car['IoU'] == pytest.approx(420 / 585)
    assert car['Recall'] == pytest.approx(420 / 570)
    assert (planted['IoU'], planted['Recall']) == (0, None)
    assert never['IoU'] is None
    summary, theirs = report['summary'], report['metrics']
    for name in ('mIoU', 'aAcc', 'mAcc'):
        assert 100 * summary[name] == pytest.approx(theirs[name], abs=0.01)
    (worst,) = report['pictures']
    assert worst['image'].endswith('wrong.png')
    assert worst['wrong'] == pytest.approx(165 / 570)


def test_page_of_a_segmentor(of_maps):
    page = (of_maps / 'report.html').read_text()
    assert PLANTED not in page
    assert 'car called &lt;script&gt;planted = 1&lt;/script&gt;: 26.3%' in page
    assert page.count('<figure class="row card"') == 1
    assert 'data:image/' in page
    assert 'Calibration' not in page


def test_a_narrow_error_is_seen_in_a_large_picture(tmp_path):
    """One column of 900, in a picture of 400 columns."""
    truth = np.zeros((600, 900), np.uint8)
    told = truth.copy()
    told[:, 334] = 1
    names = ('road', 'car', 'house', 'tree')
    config = recited.write_segmentation(tmp_path, {'a': (truth, told)}, names)
    args = [str(config), str(recited.write_checkpoint(tmp_path))]
    args += ['--work-dir', str(tmp_path / 'w'), '--report', str(tmp_path)]
    assert load_tool('test').main(args) == 0
    page = (tmp_path / 'report.html').read_text()
    (data,) = re.findall('data:image/[a-z]+;base64,([^"]+)"', page)
    picture = cv2.imdecode(
        np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR_RGB
    )
    red, green, _ = picture.astype(int).transpose(2, 0, 1)
    # The colour of errors is red without green; the picture is compressed.
    assert (red - green).mean(0)[400:].max() > 3


@pytest.mark.slow
def test_a_thousand_classes(tmp_path):
    """The page shows some of them, the file holds all and stays small."""
    names = [f'class {n}' for n in range(1203)]
    corner = (5, 5, 35, 35)
    # Pictures of ten objects; every fourth class is taken for the next one.
    truth = {'missed.png': [(3, *corner)] * 8}
    told = {}
    for start in range(0, 300, 10):
        labels = range(start, start + 10)
        boxes = [(10 * n, 50, 10 * n + 8, 60) for n in range(10)]
        truth[f'{start}.png'] = [(n, *b) for n, b in zip(labels, boxes)]
        told[f'{start}.png'] = [
            (n + (n % 4 == 0), *b, 0.9) for n, b in zip(labels, boxes)
        ]
    told['0.png'] += [(1, 90, 5, 99, 9, 0.5), (1, 60, 5, 69, 9, 0.4)]
    config = recited.write_detection(tmp_path, truth, told, names)
    args = [str(config), str(recited.write_checkpoint(tmp_path))]
    args += ['--work-dir', str(tmp_path / 'w')]
    args += ['--report', str(tmp_path / 'r')]
    assert load_tool('test').main(args) == 0
    assert (tmp_path / 'r/report.json').stat().st_size < 1e6
    report = json.loads((tmp_path / 'r/report.json').read_text())
    assert [row['class'] for row in report['per_class']] == names
    matrix = np.array(recited.matrix(report))
    assert matrix.shape == (1204, 1204)
    assert matrix.sum() == 300 + 8 + 2
    assert matrix[4, 5] == matrix[5, 5] == 1
    page = (tmp_path / 'r/report.html').read_text()
    table, matrix = re.findall('<tbody>(.*?)</tbody>', page, re.DOTALL)[2:4]
    rows = re.findall('data-sort="(class .*?)"', table)
    assert rows[:2] == ['class 0', 'class 4']
    assert len(set(rows)) == 40
    results = {row['class']: row['AP'] for row in report['per_class']}
    assert {results[name] for name in rows[:20]} == {0}
    assert min(results[name] for name in rows[20:]) > 0.99
    assert page.count('<figure class="plot"') == 41
    assert 'The 40 worst and best by AP of 1,203 classes' in page
    assert matrix.count('<tr>') == 20
    assert 'class 3</bdi>' in matrix
    assert 'The 20 of 1,204 with most errors' in page
    assert page.count('missed: class 3 (8 times)<') == 1
    assert 'background: class 1 0.40 to 0.50 (2 times)' in page


def test_wrong_input_is_one_line(location, capsys):
    main = load_tool('test').main
    args = [str(location / 'recited.py'), str(location / 'recited.pth')]
    for wrong, message in (
        (['--report', str(location / 'truth.json')], '--report'),
        (['--score-thr', '2'], 'must be in [0, 1], got 2.0'),
    ):
        with pytest.raises(SystemExit) as info:
            main([*args, '--work-dir', str(location / 'w'), *wrong])
        assert info.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count('\n') == 1


@pytest.mark.parametrize(
    ('sample', 'message'),
    [
        ({'img_path': 'a.png', 'pred_depth': 1}, 'got a sample with'),
        ({'pred_instances': {}}, 'add it to meta_keys'),
        (
            {'img_path': 'a.png', 'pred_instances': {'bboxes': 1}},
            'leave --report out',
        ),
    ],
)
def test_refuses_what_it_cannot_judge(sample, message):
    with pytest.raises(ValueError, match=message):
        ReportMetric().process({}, [sample])
