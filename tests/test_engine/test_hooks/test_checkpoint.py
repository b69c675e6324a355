import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from mmengine.fileio import BaseStorageBackend, FileClient, register_backend

from mmext.engine import AtomicCheckpointHook, PortableRunner


def hooks(**kwargs):
    options = dict(type='CheckpointHook', interval=1, **kwargs)
    return dict(
        checkpoint=options, logger=dict(type='LoggerHook', interval=10)
    )


def files(folder):
    return sorted(path.name for path in Path(folder).glob('*.pth'))


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_while_saving(monkeypatch, filename):
    """Training ends in the middle of writing a file."""
    save = PortableRunner.save_checkpoint

    def die(self, *args, **kwargs):
        if filename in (*args, *kwargs.values()):
            raise Killed
        save(self, *args, **kwargs)

    monkeypatch.setattr(PortableRunner, 'save_checkpoint', die)


def test_keeps_the_last_ones(tmp_path):
    toy.train(tmp_path, default_hooks=hooks(max_keep_ckpts=2))
    assert files(tmp_path) == ['epoch_2.pth', 'epoch_3.pth']
    pointer = (tmp_path / 'last_checkpoint').read_text()
    assert pointer == str(tmp_path / 'epoch_3.pth')


def test_old_one_stays_until_the_new_one_is_there(tmp_path, monkeypatch):
    killed_while_saving(monkeypatch, 'epoch_2.pth')
    with pytest.raises(Killed):
        toy.train(tmp_path, default_hooks=hooks(max_keep_ckpts=1))
    assert files(tmp_path) == ['epoch_1.pth']
    monkeypatch.undo()
    toy.train(tmp_path, default_hooks=hooks(max_keep_ckpts=1), resume=True)
    assert files(tmp_path) == ['epoch_3.pth']


def test_killed_before_the_old_one_is_removed(tmp_path, monkeypatch):
    def killed(self, runner, path):
        raise Killed

    monkeypatch.setattr(AtomicCheckpointHook, '_remove', killed)
    with pytest.raises(Killed):
        toy.train(tmp_path, default_hooks=hooks(max_keep_ckpts=1))
    assert files(tmp_path) == ['epoch_1.pth', 'epoch_2.pth']
    monkeypatch.undo()
    # What somebody else has put there is not removed.
    shutil.copy(tmp_path / 'epoch_1.pth', tmp_path / 'mine.pth')
    toy.train(tmp_path, default_hooks=hooks(max_keep_ckpts=1), resume=True)
    assert files(tmp_path) == ['epoch_3.pth', 'mine.pth']


def scores(*values):
    return dict(type='ToyMetric', scores=list(values))


@pytest.mark.parametrize(('rule', 'epoch'), [('greater', 2), ('less', 3)])
def test_best_one(tmp_path, rule, epoch):
    toy.train(
        tmp_path,
        val_evaluator=scores(2, 3, 1),
        default_hooks=hooks(max_keep_ckpts=1, save_best='mean', rule=rule),
    )
    assert files(tmp_path) == [f'best_mean_epoch_{epoch}.pth', 'epoch_3.pth']


def test_best_one_stays_until_the_better_one_is_there(tmp_path, monkeypatch):
    killed_while_saving(monkeypatch, 'best_mean_epoch_2.pth')
    with pytest.raises(Killed):
        toy.train(
            tmp_path,
            val_evaluator=scores(1, 2, 3),
            default_hooks=hooks(save_best='mean', rule='greater'),
        )
    assert 'best_mean_epoch_1.pth' in files(tmp_path)


def test_best_one_written_again_is_not_removed(tmp_path):
    runner = toy.build(
        tmp_path,
        val_evaluator=scores(1, 2, 3),
        default_hooks=hooks(save_best='mean', rule='greater'),
    )
    runner.train()
    (hook,) = (h for h in runner.hooks if isinstance(h, AtomicCheckpointHook))
    assert Path(hook.best_ckpt_path).name == 'best_mean_epoch_3.pth'
    hook.after_val_epoch(runner, dict(mean=4.0))
    assert Path(hook.best_ckpt_path).is_file()


def test_published_file_is_named_after_its_content(tmp_path):
    toy.train(
        tmp_path,
        default_hooks=hooks(
            max_keep_ckpts=1, published_keys=['meta', 'state_dict']
        ),
    )
    (published,) = (n for n in files(tmp_path) if '-' in n)
    digest = hashlib.sha256((tmp_path / published).read_bytes()).hexdigest()
    assert published == f'epoch_3-{digest[:8]}.pth'
    assert set(torch.load(tmp_path / published, weights_only=False)) == {
        'meta',
        'state_dict',
    }


class Bucket(BaseStorageBackend):
    """Addresses ``bucket://...``, which are kept below a folder."""

    root = None
    puts = []

    def _file(self, path):
        return self.root / str(path).removeprefix('bucket://')

    def get(self, filepath):
        return self._file(filepath).read_bytes()

    def get_text(self, filepath):
        return self._file(filepath).read_text()

    def put(self, obj, filepath):
        self.puts.append(filepath)
        self._file(filepath).parent.mkdir(parents=True, exist_ok=True)
        self._file(filepath).write_bytes(obj)

    def isfile(self, filepath):
        return self._file(filepath).is_file()

    def remove(self, filepath):
        self._file(filepath).unlink()

    def join_path(self, filepath, *filepaths):
        return '/'.join([str(filepath), *filepaths])


def test_other_places_than_a_local_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(Bucket, 'root', tmp_path / 'bucket')
    monkeypatch.setattr(Bucket, 'puts', [])
    for register in (register_backend, FileClient.register_backend):
        register('bucket', Bucket, force=True, prefixes='bucket')
    work_dir = tmp_path / 'runs'
    toy.train(
        work_dir, default_hooks=hooks(max_keep_ckpts=1, out_dir='bucket://a')
    )
    assert Bucket.puts == [f'bucket://a/runs/epoch_{i}.pth' for i in (1, 2, 3)]
    assert files(tmp_path / 'bucket/a/runs') == ['epoch_3.pth']
    assert (work_dir / 'last_checkpoint').read_text() == Bucket.puts[-1]
