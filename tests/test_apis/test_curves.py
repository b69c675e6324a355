"""Curves show the logged numbers, grouped as the model is."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from mmext.apis.curves import (
    ScalarLog,
    draw_curves,
    group_losses,
    loss_group,
    merge_records,
    plot_log,
    read_scalars,
)

# Keys of the loss dict of CO-DINO with two co-heads, by part.
PARTS = {
    'detr': ('loss_cls', 'd0.loss_iou', 'enc_loss_bbox'),
    'dn': ('dn_loss_cls', 'd0.dn_loss_iou'),
    'aux': ('loss_cls_aux0', 'd1.loss_bbox_aux1'),
    'co-heads': ('loss_cls0', 'loss_bbox1', 'loss_centerness1'),
    'rpn': ('loss_rpn_cls', 'loss_rpn_bbox'),
    'total': ('loss',),
}


def series(*values, start=10):
    steps = range(start, start + 10 * len(values), 10)
    return dict(zip(steps, map(float, values)))


def lines(axes):
    return {
        line.get_label().split(' (last')[0]: line
        for line in axes.get_lines()
        if not line.get_label().startswith('_')
    }


@pytest.mark.parametrize('part', PARTS)
def test_loss_group(part):
    assert {loss_group(name) for name in PARTS[part]} == {part}


def test_parts_add_up_to_the_total():
    names = [name for part in PARTS.values() for name in part]
    train = {name: series(1.0, 2.0) for name in names}
    train['loss'] = series(12.0, 24.0)
    train['lr'] = train['acc0'] = series(5.0, 5.0)
    groups = group_losses(train)
    assert next(iter(groups)) == 'total'
    assert len(groups) == 6
    total = groups.pop('total')
    values = np.array([[*item.values()] for item in groups.values()])
    np.testing.assert_array_equal(values.sum(axis=0), [*total.values()])
    assert {tuple(item) for item in groups.values()} == {(10, 20)}


def test_losses_of_other_detectors_stand_alone():
    train = {name: series(1.0) for name in ('loss', 'loss_cls', 'loss_bbox')}
    assert list(group_losses(train)) == ['total', 'loss_cls', 'loss_bbox']


def test_lines_are_the_logged_values():
    log = ScalarLog(
        train={'loss': series(3, 2), 'lr': series(0.1, 0.2)},
        val={
            'coco/bbox_mAP': series(0.1, 0.4),
            'coco/bbox_mAP_s': series(-1, -1),
            'time': series(1, 1),
        },
        restarts=(20,),
    )
    loss, rate, metric = draw_curves(log).axes
    np.testing.assert_array_equal(lines(loss)['total'].get_ydata(), [3, 2])
    np.testing.assert_array_equal(lines(rate)['lr'].get_xdata(), [10, 20])
    assert set(lines(metric)) == {'coco/bbox_mAP', 'training resumed'}
    assert metric.get_xlabel() == 'training iteration'
    assert [axes.get_ylabel() for axes in (loss, rate, metric)] == [
        'loss',
        'learning rate',
        'validation mAP',
    ]


def test_weights_of_tasks_have_a_panel():
    item = {1: 0.9, 2: 1.1}
    log = ScalarLog({'loss': item, 'weight/depth': item, 'lr': item}, {})
    _loss, weight, _rate = draw_curves(log).axes
    assert weight.get_ylabel() == 'weight of task'
    assert 'depth (last 1.1)' in [
        t.get_text() for t in weight.get_legend().texts
    ]


def test_log_scale_for_a_wide_spread_only():
    for last, scale in ((1.0, 'log'), (50.0, 'linear'), (-1.0, 'linear')):
        log = ScalarLog(train={'loss': series(100, last)}, val={})
        (axes,) = draw_curves(log).axes
        assert axes.get_yscale() == scale


def test_long_losses_are_smoothed_and_rates_are_not():
    values = [1.0, 3.0] * 60
    log = ScalarLog(
        train={'loss': series(*values), 'lr': series(*values)}, val={}
    )
    loss, rate = draw_curves(log).axes
    faint, thick = loss.get_lines()
    np.testing.assert_array_equal(faint.get_ydata(), values)
    middle = thick.get_ydata()[10:-10]
    np.testing.assert_allclose(middle, 2, atol=0.2)
    np.testing.assert_array_equal(rate.get_lines()[0].get_ydata(), values)


def test_nan_is_a_gap_and_spoils_nothing():
    values = [1.0] * 50
    values[25] = float('nan')
    log = ScalarLog(train={'loss': series(*values)}, val={})
    (axes,) = draw_curves(log).axes
    _, thick = axes.get_lines()
    np.testing.assert_allclose(thick.get_ydata(), 1)


def test_nothing_measured_is_no_value():
    log = ScalarLog(train={}, val={'coco/bbox_mAP': series(-1, 0.5)})
    (axes,) = draw_curves(log).axes
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [np.nan, 0.5])


def test_other_metrics_are_drawn_when_there_is_no_map():
    log = ScalarLog(train={}, val={'mIoU': series(40), 'time': series(1)})
    (axes,) = draw_curves(log).axes
    assert set(lines(axes)) == {'mIoU'}
    assert axes.get_ylabel() == 'validation'


def test_rejects_a_log_with_nothing_to_draw():
    log = ScalarLog(train={'memory': series(1)}, val={'time': series(1)})
    with pytest.raises(ValueError, match=r"log must hold.*'memory', 'time'"):
        draw_curves(log)


def test_writes_a_png_whole(tmp_path):
    work_dir = tmp_path / 'work'
    write(work_dir, 'run', [train(10, 1.0)], end='\n{"cut')
    out = tmp_path / 'new' / 'curves.png'
    for _ in range(2):
        log = plot_log(work_dir, out)
    (note,) = log.notes
    assert 'line 2, the last, is only half written' in note
    assert os.listdir(out.parent) == ['curves.png']
    with Image.open(out) as picture:
        picture.load()
        assert picture.format == 'PNG'
        assert picture.width > 1000
    with pytest.raises(ValueError, match=r'out must end in \.png'):
        plot_log(work_dir, tmp_path / 'a.jpg')


def train(step, loss, **more):
    return {'lr': 0.1, 'loss': loss, 'iter': step, 'step': step, **more}


def val(step, value):
    return {'coco/bbox_mAP': value, 'time': 0.1, 'step': step}


def write(work_dir, name, records, end='\n'):
    folder = work_dir / name / 'vis_data'
    folder.mkdir(parents=True)
    text = '\n'.join(json.dumps(record) for record in records)
    (folder / 'scalars.json').write_text(text + end)


def test_validation_counted_in_epochs_stands_at_its_iteration():
    log = merge_records(
        [train(50, 3.0), val(1, 0.1), train(100, 2.0), val(2, 0.3)]
    )
    assert log.val['coco/bbox_mAP'] == {50: 0.1, 100: 0.3}


def test_validation_counted_in_iterations_keeps_its_step():
    log = merge_records([train(50, 3.0), val(64, 0.1), train(100, 2.0)])
    assert log.val['coco/bbox_mAP'] == {64: 0.1}


def test_newest_run_wins():
    old = [train(10, 1.0), train(20, 1.0), val(20, 0.1)]
    old += [train(30, 1.0), train(40, 1.0), val(40, 0.2)]
    log = merge_records([*old, train(30, 2.0), val(31, 0.3)])
    assert log.train['loss'] == {10: 1.0, 20: 1.0, 30: 2.0}
    assert log.val['coco/bbox_mAP'] == {20: 0.1, 31: 0.3}
    assert log.restarts == (30,)
    assert log.notes[0].startswith('3 records of older runs were left out')


def test_a_new_training_in_an_old_folder_stands_alone():
    log = merge_records([train(10, 1.0), train(20, 1.0), train(10, 2.0)])
    assert log.train['loss'] == {10: 2.0}
    assert log.restarts == ()


def test_only_numbers_are_kept():
    log = merge_records([train(10, 1.0, name='x', flag=True, many=[1])])
    assert sorted(log.train) == ['loss', 'lr']


def test_rejects_an_iteration_that_is_no_number():
    with pytest.raises(ValueError, match=r"iter must be a number.*'ten'"):
        merge_records([train('ten', 1.0)])


def test_reads_runs_in_the_order_of_time(tmp_path):
    write(tmp_path, '20261120_110000', [train(20, 2.0), train(30, 2.0)])
    write(tmp_path, '20261120_100000', [train(10, 1.0), train(20, 1.0)])
    log = read_scalars(tmp_path)
    assert log.train['loss'] == {10: 1.0, 20: 2.0, 30: 2.0}
    assert log.restarts == (20,)


@pytest.mark.parametrize('part', ['', 'run', 'run/vis_data'])
def test_reads_a_work_dir_a_run_and_its_data(tmp_path, part):
    write(tmp_path, 'run', [train(10, 1.0)])
    assert read_scalars(tmp_path / part).train['loss'] == {10: 1.0}


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{"lr": 0.1}\n{"lr": 0.\n{"lr": 1}\n', 'per line.*line 2'),
        ('[1, 2]\n', 'per line.*line 1'),
        ('', 'log file.* are empty'),
    ],
)
def test_rejects_a_broken_log(tmp_path, content, message):
    with pytest.raises(FileNotFoundError, match='work_dir must be an exist'):
        read_scalars(tmp_path / 'no')
    with pytest.raises(FileNotFoundError, match='must hold a training log'):
        read_scalars(tmp_path)
    (tmp_path / 'scalars.json').write_text(content)
    with pytest.raises(ValueError, match=message):
        read_scalars(tmp_path)
