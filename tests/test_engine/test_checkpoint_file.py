import os
import shutil
from pathlib import Path

import pytest
import torch

from mmext.engine.checkpoint_file import (
    find_newest_checkpoint,
    read_checkpoint,
    remove_leftovers,
    summarize_checkpoint,
)


class Custom:
    """An object, which a safe reader refuses."""


def save(path, *, iteration=1, time='20260101_000000', optimizer=True, **more):
    checkpoint = dict(
        meta=dict(iter=iteration, epoch=0, time=time), state_dict={}, **more
    )
    if optimizer:
        checkpoint['optimizer'] = dict(state=torch.zeros(1000))
    torch.save(checkpoint, path)
    return path


def newest(folder):
    found = find_newest_checkpoint(folder).checkpoint
    return found and Path(found).name


def test_summary(tmp_path):
    path = save(tmp_path / 'a.pth', iteration=7)
    summary = summarize_checkpoint(path)
    assert (summary.iter, summary.epoch, summary.resumable) == (7, 0, True)
    path = save(tmp_path / 'b.pth', optimizer=False)
    assert not summarize_checkpoint(path).resumable


def test_old_format_and_objects(tmp_path):
    torch.save(
        dict(meta=dict(iter=3)),
        tmp_path / 'old.pth',
        _use_new_zipfile_serialization=False,
    )
    assert summarize_checkpoint(tmp_path / 'old.pth').iter == 3
    save(tmp_path / 'object.pth', extra=Custom())
    assert isinstance(
        read_checkpoint(tmp_path / 'object.pth')['extra'], Custom
    )


def test_newest_goes_by_the_time_inside(tmp_path):
    save(tmp_path / 'new.pth', iteration=1, time='20260102_000000')
    save(tmp_path / 'old.pth', iteration=9, time='20260101_000000')
    assert newest(tmp_path) == 'new.pth'


def test_of_the_same_second_the_furthest(tmp_path):
    for name, iteration in (('a', 9), ('b', 10), ('c', 8)):
        save(tmp_path / f'{name}.pth', iteration=iteration)
    assert newest(tmp_path) == 'b.pth'


@pytest.mark.parametrize('size', [0, 10, 1000, -1])
def test_cut_off_file_is_passed_over(tmp_path, size):
    save(tmp_path / 'good.pth', iteration=1)
    bad = save(tmp_path / 'bad.pth', iteration=2)
    with open(bad, 'r+b') as file:
        file.truncate(bad.stat().st_size + size if size < 0 else size)
    result = find_newest_checkpoint(tmp_path)
    assert Path(result.checkpoint).name == 'good.pth'
    assert 'passed over bad.pth' in result.notes[0]
    assert 'damaged' in result.notes[0]


def test_what_cannot_be_resumed_is_passed_over(tmp_path):
    save(tmp_path / 'best_mAP_epoch_3.pth', iteration=9, optimizer=False)
    torch.save(dict(weight=torch.zeros(1)), tmp_path / 'weights.pth')
    assert newest(tmp_path) is None
    save(tmp_path / 'epoch_1.pth')
    assert newest(tmp_path) == 'epoch_1.pth'


def test_empty_and_absent_folders(tmp_path):
    assert newest(tmp_path) is None
    assert newest(tmp_path / 'none') is None


@pytest.mark.parametrize('text', ['', '\n', 'gone/epoch_9.pth', '\0\0\0'])
def test_bad_pointer_does_not_matter(tmp_path, text):
    save(tmp_path / 'epoch_1.pth')
    (tmp_path / 'last_checkpoint').write_text(text)
    result = find_newest_checkpoint(tmp_path)
    assert Path(result.checkpoint).name == 'epoch_1.pth'
    assert 'last_checkpoint' in result.notes[0]


def test_stale_pointer_does_not_matter(tmp_path):
    old = save(tmp_path / 'epoch_1.pth', iteration=1)
    save(tmp_path / 'epoch_2.pth', iteration=2)
    (tmp_path / 'last_checkpoint').write_text(str(old))
    assert newest(tmp_path) == 'epoch_2.pth'


def test_pointer_to_another_folder(tmp_path):
    other = tmp_path / 'other'
    other.mkdir()
    pointed = save(other / 'epoch_1.pth', iteration=1)
    save(other / 'epoch_2.pth', iteration=2)
    work_dir = tmp_path / 'work'
    work_dir.mkdir()
    save(work_dir / 'stopped_iter_3.pth', iteration=3)
    (work_dir / 'last_checkpoint').write_text(str(pointed))
    assert newest(work_dir) == 'stopped_iter_3.pth'
    os.remove(work_dir / 'stopped_iter_3.pth')
    assert newest(work_dir) == 'epoch_2.pth'


def test_remote_pointer_is_believed(tmp_path):
    save(tmp_path / 'epoch_1.pth')
    (tmp_path / 'last_checkpoint').write_text('s3://bucket/epoch_2.pth')
    result = find_newest_checkpoint(tmp_path)
    assert result.checkpoint == 's3://bucket/epoch_2.pth'


def test_moved_work_dir(tmp_path):
    before = tmp_path / 'before'
    before.mkdir()
    path = save(before / 'epoch_1.pth')
    (before / 'last_checkpoint').write_text(str(path))
    shutil.move(before, tmp_path / 'after')
    assert newest(tmp_path / 'after') == 'epoch_1.pth'


def test_leftovers_are_found_and_never_taken(tmp_path):
    save(tmp_path / '.epoch_2.123.tmp.pth', iteration=2)
    (tmp_path / '.last_checkpoint.123.tmp').write_text('x')
    (tmp_path / '.hidden').write_text('of somebody else')
    save(tmp_path / 'epoch_1.pth')
    result = find_newest_checkpoint(tmp_path)
    assert Path(result.checkpoint).name == 'epoch_1.pth'
    assert len(result.leftovers) == 2
    remove_leftovers(result.leftovers)
    assert sorted(os.listdir(tmp_path)) == ['.hidden', 'epoch_1.pth']


def test_rejects_absent_file(tmp_path):
    with pytest.raises(FileNotFoundError, match='no such file, looked from'):
        read_checkpoint(tmp_path / 'none.pth')
    with pytest.raises(FileNotFoundError, match='a folder'):
        read_checkpoint(tmp_path)


def test_rejects_what_is_no_checkpoint(tmp_path):
    path = tmp_path / 'text.pth'
    path.write_text('hello')
    with pytest.raises(ValueError, match=r'no PyTorch checkpoint .5 bytes'):
        read_checkpoint(path)
    torch.save([1], path)
    with pytest.raises(ValueError, match='must hold a dict, got list'):
        read_checkpoint(path)


def test_summary_rejects_bare_weights(tmp_path):
    torch.save(dict(weight=torch.zeros(1)), tmp_path / 'a.pth')
    with pytest.raises(ValueError, match='must have a training position'):
        summarize_checkpoint(tmp_path / 'a.pth')


def test_remote_checkpoints_go_through_mmengine(monkeypatch):
    calls = []
    monkeypatch.setattr(
        'mmext.engine.checkpoint_file.CheckpointLoader.load_checkpoint',
        lambda *args: calls.append(args) or dict(a=1),
    )
    assert read_checkpoint('https://host/a.pth') == dict(a=1)
    assert calls == [('https://host/a.pth', 'cpu')]


def test_pytorch_without_safe_globals(tmp_path, monkeypatch):
    path = save(tmp_path / 'a.pth', extra=Custom())
    monkeypatch.delattr(torch.serialization, 'safe_globals')
    assert summarize_checkpoint(path).iter == 1
