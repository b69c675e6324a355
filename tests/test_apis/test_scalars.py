"""Runs of a work dir become one history."""

import json

import pytest

from mmext.apis.scalars import Series, merge_records, read_scalars


def train(step, loss, **more):
    return {'lr': 0.1, 'loss': loss, 'iter': step, 'step': step, **more}


def val(step, value):
    return {'coco/bbox_mAP': value, 'time': 0.1, 'step': step}


def write(work_dir, name, records, end='\n'):
    folder = work_dir / name / 'vis_data'
    folder.mkdir(parents=True)
    text = '\n'.join(json.dumps(record) for record in records)
    (folder / 'scalars.json').write_text(text + end)


def test_values_by_iteration():
    log = merge_records([train(10, 3.0, epoch=1), train(20, 2.0, epoch=1)])
    assert log.train == {
        'lr': Series((10, 20), (0.1, 0.1)),
        'loss': Series((10, 20), (3.0, 2.0)),
    }
    assert log.val == {}
    assert log.restarts == ()
    assert log.notes == ()


def test_a_value_that_comes_later_has_its_own_steps():
    log = merge_records([train(10, 3.0), train(20, 2.0, loss_new=1.0)])
    assert log.train['loss_new'] == Series((20,), (1.0,))


def test_validation_counted_in_epochs_stands_at_its_iteration():
    log = merge_records(
        [train(50, 3.0), val(1, 0.1), train(100, 2.0), val(2, 0.3)]
    )
    assert log.val['coco/bbox_mAP'] == Series((50, 100), (0.1, 0.3))


def test_validation_counted_in_iterations_keeps_its_step():
    log = merge_records([train(50, 3.0), val(64, 0.1), train(100, 2.0)])
    assert log.val['coco/bbox_mAP'] == Series((64,), (0.1,))


def test_validation_before_the_training():
    log = merge_records([val(0, 0.1), train(10, 3.0)])
    assert log.val['coco/bbox_mAP'] == Series((0,), (0.1,))


def test_newest_run_wins():
    old = [train(10, 1.0), train(20, 1.0), val(20, 0.1)]
    old += [train(30, 1.0), train(40, 1.0), val(40, 0.2)]
    log = merge_records([*old, train(30, 2.0), val(31, 0.3)])
    assert log.train['loss'] == Series((10, 20, 30), (1.0, 1.0, 2.0))
    assert log.val['coco/bbox_mAP'] == Series((20, 31), (0.1, 0.3))
    assert log.restarts == (30,)
    assert log.notes[0].startswith('3 records of older runs were left out')


def test_a_new_training_in_an_old_folder_stands_alone():
    log = merge_records([train(10, 1.0), train(20, 1.0), train(10, 2.0)])
    assert log.train['loss'] == Series((10,), (2.0,))
    assert log.restarts == ()


def test_a_second_restart_before_the_first():
    records = [train(s, 1.0) for s in (10, 20, 30)]
    records += [train(s, 2.0) for s in (30, 40)]
    records += [train(s, 3.0) for s in (20, 30)]
    log = merge_records(records)
    assert log.train['loss'] == Series((10, 20, 30), (1.0, 3.0, 3.0))
    assert log.restarts == (20,)


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
    assert log.train['loss'] == Series((10, 20, 30), (1.0, 2.0, 2.0))
    assert log.restarts == (20,)


@pytest.mark.parametrize('part', ['', 'run', 'run/vis_data'])
def test_reads_a_work_dir_a_run_and_its_data(tmp_path, part):
    write(tmp_path, 'run', [train(10, 1.0)])
    assert read_scalars(tmp_path / part).train['loss'].steps == (10,)


def test_nan_is_read(tmp_path):
    write(tmp_path, 'run', [train(10, float('nan'))])
    (value,) = read_scalars(tmp_path).train['loss'].values
    assert value != value


def test_a_half_written_last_line_is_left_out_and_told(tmp_path):
    write(tmp_path, 'run', [train(10, 1.0)], end='\n{"lr": 0.1, "lo')
    log = read_scalars(tmp_path)
    assert log.train['loss'].steps == (10,)
    (note,) = log.notes
    assert 'line 2, the last, is only half written' in note


def test_rejects_a_broken_line_in_between(tmp_path):
    write(tmp_path, 'run', [train(10, 1.0)], end='\n{"lr": 0.\n{"lr": 1}\n')
    with pytest.raises(ValueError, match=r'one JSON object per line.*line 2'):
        read_scalars(tmp_path)


def test_rejects_lines_that_are_no_objects(tmp_path):
    write(tmp_path, 'run', [[1, 2]])
    with pytest.raises(ValueError, match=r'one JSON object per line.*line 1'):
        read_scalars(tmp_path)


def test_rejects_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match='work_dir must be an exist'):
        read_scalars(tmp_path / 'no')


def test_rejects_a_folder_without_a_log(tmp_path):
    with pytest.raises(FileNotFoundError, match='must hold a training log'):
        read_scalars(tmp_path)


def test_rejects_an_empty_log(tmp_path):
    write(tmp_path, 'run', [], end='')
    with pytest.raises(ValueError, match=r'log file.* are empty'):
        read_scalars(tmp_path)
