"""The LVIS config goes through the tools, on a tiny LVIS set."""

import json
import sys
from pathlib import Path

import mmdet.evaluation.metrics.lvis_metric as host_metric
import pytest
from helpers import recited
from helpers.lvis_set import CLASSES, write_config
from helpers.toy_ranks import load_tool, start_ranks
from mmengine import Config
from mmengine.fileio import dump, load


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path)


def findings(tool: str, config: str, *more: str) -> list[dict]:
    """What a tool reports, notes left out."""
    told = Path(config).with_name('told.json')
    store = ['--store', str(told.with_name('store.sqlite'))]
    code = load_tool(tool).main([config, *store, '--json', str(told), *more])
    content = load(told)
    rows = content['groups' if tool == 'validate_labels' else 'findings']
    assert code == any(row['severity'] == 2 for row in rows)
    return [row for row in rows if row['severity']]


def test_labels(config):
    """Lists of categories that contradict the file are named, no others."""
    (group,) = findings('validate_labels', config)
    assert group['rule'] == 'CLS001'
    path = Path(config).with_name('data') / 'annotations/lvis_v1_train.json'
    content = load(path)
    # One that has objects, and two that are no category.
    content['images'][1]['neg_category_ids'] = [7, 5]
    content['images'][2]['neg_category_ids'] = [7, 70]
    content['images'][3]['not_exhaustive_category_ids'] = [90]
    dump(content, path)
    _, group = findings('validate_labels', config)
    assert group['rule'] == 'COCO018'
    rows = [(row['position'], row['value']) for row in group['examples']]
    assert rows == [('images[1]', '5'), ('images[2], images[3]', '70, 90')]


@pytest.mark.slow
def test_preflight(config):
    """A class without objects is all that is found."""
    rows = findings('preflight', config)
    assert [row['rule'] for row in rows] == ['CLS001']


HOST_CONFIG = """
_base_ = 'mmdet::lvis/mask-rcnn_r50_fpn_sample1e-3_ms-1x_lvis-v1.py'
few = dict(data_root={root!r}, metainfo=dict(classes={classes!r}))
train_dataloader = dict(dataset=dict(dataset=few))
val_dataloader = dict(dataset=few)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file={root!r} + 'annotations/lvis_v1_val.json')
test_evaluator = val_evaluator
model = dict(
    backbone=dict(
        depth=18, init_cfg=None, frozen_stages=-1, norm_eval=False),
    neck=dict(in_channels=[64, 128, 256, 512]),
    roi_head=dict(
        bbox_head=dict(num_classes=4), mask_head=dict(num_classes=4)))
"""
CURE = """
few.update(type='mmext.LVISV1Dataset')
val_evaluator.update(type='mmext.LVISMetric')
"""


@pytest.mark.slow
def test_host_config_without_the_package(config, monkeypatch):
    """What the remedy names is what makes MMDetection's config be built."""
    monkeypatch.setitem(sys.modules, 'lvis', None)
    monkeypatch.setattr(host_metric, 'lvis', None)
    path, root = Path(config), str(Path(config).with_name('data')) + '/'
    text = HOST_CONFIG.format(root=root, classes=CLASSES)
    argv = ['--batches', 'normal', '--image-size', '96', '96']
    argv += ['--miniature', 'off']
    path.write_text(text)
    *rows, kept = findings('preflight', config, *argv)
    assert kept['rule'] == 'CLS001'
    assert [(row['rule'], row['names'][0]) for row in rows] == [
        ('BUILD001', 'train_dataloader.dataset.dataset'),
        ('BUILD001', 'val_evaluator'),
    ]
    for row in rows:
        assert "set type='mmext.LVISV1Dataset' of the data" in row['remedy']
        assert "type='mmext.LVISMetric' of the evaluator" in row['remedy']
    path.write_text(text + CURE)
    assert [row['rule'] for row in findings('preflight', config, *argv)] == [
        'CLS001'
    ]


@pytest.mark.slow
def test_report(config, tmp_path):
    """Average precision of rare, common and frequent classes, as LVIS has it.

    One class is right, one misses two of its five objects, one has boxes on
    nothing in pictures where not all of its objects are annotated.
    """
    annotations = tmp_path / 'data/annotations/lvis_v1_val.json'
    told = {f'{own:012}.jpg': [] for own in range(1, 7)}
    for note in load(annotations)['annotations']:
        own, (x, y, width, height) = note['image_id'], note['bbox']
        label = (3, 5, 7, 9).index(note['category_id'])
        if label == 1 and own > 4:
            # Found as the class of which not all is annotated.
            label = 3
        told[f'{own:012}.jpg'].append(
            (label, x, y, x + width, y + height, 0.9)
        )
    nothing = (84, 84, 95, 95)
    for rows in told.values():
        rows.append((3, *nothing, 0.95))
    # Unknown in the first picture, known to be absent in the second.
    told['000000000001.jpg'].append((1, *nothing, 0.95))
    told['000000000002.jpg'].append((2, *nothing, 0.8))
    cfg = Config.fromfile(config)
    model = {'type': 'mmengine.RecitingDetector', 'told': told}
    cfg.merge_from_dict({'model': {'_delete_': True, **model}})
    cfg.dump(config)
    argv = [config, str(recited.write_checkpoint(tmp_path))]
    argv += ['--work-dir', str(tmp_path / 'run'), '--report', str(tmp_path)]
    assert load_tool('test').main(argv) == 0
    report = load(tmp_path / 'report.json')
    summary = report['summary']
    shares = [summary[f'AP{kind}'] for kind in 'rcf']
    assert shares == pytest.approx([1, 61 / 101, 1])
    assert list(summary)[:6] == ['AP', 'AP50', 'AP75', 'APs', 'APm', 'APl']
    for name, value in summary.items():
        theirs = report['metrics'][f'lvis/bbox_{name}']
        assert (-1 if value is None else value) == pytest.approx(
            theirs, abs=5e-4
        )
    rows = report['per_class']
    kinds = [row['frequency'] for row in rows]
    assert kinds == ['rare', 'common', 'common', 'frequent']
    assert [row['AP'] for row in rows if row['objects']] == pytest.approx(
        shares
    )
    counts = {name: own for name, own in report['counts'].items() if own}
    assert counts == {'right': 15, 'missed': 2, 'background': 1}
    page = (tmp_path / 'report.html').read_text()
    assert 'of rare, common and frequent classes' in page
    assert '<b>0.604</b> <span>APc</span>' in page
    assert '>common</td><td class="number" data-sort="5">5</td>' in page


@pytest.mark.slow
def test_training(config, tmp_path):
    """What it validates is what a test of its checkpoint reports."""
    argv = [config, '--work-dir', tmp_path / 'run', '--cfg-options']
    argv += ['train_cfg.max_epochs=1', 'default_hooks.logger.interval=1']
    ranks = start_ranks(argv, 1, tmp_path / 'out')
    assert ranks.wait() == [0], ranks.output()[-3000:]
    (log,) = (tmp_path / 'run').glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    # Eight samples of seven pictures: that of the rare class is repeated.
    assert len([row for row in rows if 'loss_cls' in row]) == 4
    argv = [config, str(tmp_path / 'run/epoch_1.pth'), '--work-dir']
    argv += [str(tmp_path / 'test'), '--report', str(tmp_path)]
    assert load_tool('test').main(argv) == 0
    metrics = load(tmp_path / 'report.json')['metrics']
    for kind in 'rcf':
        name = f'lvis/bbox_AP{kind}'
        assert 0 <= metrics[name] == rows[-1][name] <= 1
