"""Resuming where the work dir is not what and where it was."""

import hashlib
import shutil

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.config import Config
from mmengine.registry import METRICS, RUNNERS

pytestmark = pytest.mark.xdist_group('processes')

# Scores of two epochs, and of two more: the best are epoch 1 and epoch 3.
FIRST, SECOND = [5.0, 1.0], [9.0, 8.0]


@METRICS.register_module(force=True)
class ScoresMetric(toy.ToyMetric):
    """Says a number, or several ones by name, time after time."""

    def compute_metrics(self, results):
        score = self.scores.pop(0)
        return score if isinstance(score, dict) else dict(mean=score)


@pytest.fixture
def train(tmp_path):
    """Train by the tool; returns what it has printed."""
    count = iter(range(99))

    def function(
        work_dir, *args, epochs=4, scores=SECOND, world_size=1, code=0, **hook
    ):
        hook = {
            'type': 'CheckpointHook',
            'interval': 1,
            'max_keep_ckpts': 2,
            'save_best': 'mean',
            'rule': 'greater',
            **hook,
        }
        cfg = toy.config(
            train_cfg=dict(by_epoch=True, max_epochs=epochs, val_interval=1),
            val_evaluator=dict(type='ScoresMetric', scores=list(scores)),
            default_hooks=dict(
                checkpoint=hook, logger=dict(type='LoggerHook', interval=1)
            ),
            param_scheduler=[],
        )
        number = next(count)
        path = toy.write(tmp_path / f'cfg{number}.py', cfg)
        argv = [path, '--work-dir', work_dir, *args]
        ranks = start_ranks(argv, world_size, tmp_path / f'out{number}')
        assert ranks.wait(180) == [code] * world_size, ranks.output()
        return ranks.output()

    return function


@pytest.fixture
def first(tmp_path, train):
    """Work dir of a run of two epochs; the first one was the best."""
    train(tmp_path / 'first', epochs=2, scores=FIRST)
    assert files(tmp_path / 'first') == [
        'best_mean_epoch_1.pth',
        'epoch_1.pth',
        'epoch_2.pth',
    ]
    return tmp_path / 'first'


def files(folder):
    return sorted(path.name for path in folder.glob('*.pth'))


def content(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def position(folder, name):
    return torch.load(folder / name, weights_only=False)['meta']['iter']


AFTER = ['best_mean_epoch_3.pth', 'epoch_3.pth', 'epoch_4.pth']


@pytest.mark.parametrize(
    'world_size', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_copy_goes_on_from_itself(tmp_path, train, world_size):
    train(tmp_path / 'first', epochs=2, scores=FIRST, world_size=world_size)
    before = content(tmp_path / 'first')
    copy = tmp_path / 'copy'
    shutil.copytree(tmp_path / 'first', copy)
    output = train(copy, '--resume', world_size=world_size)
    assert f'Resuming from {copy}/epoch_2.pth' in output
    assert f'last_checkpoint names {tmp_path}/first/epoch_2.pth' in output
    assert content(tmp_path / 'first') == before
    assert files(copy) == AFTER
    assert (copy / 'last_checkpoint').read_text() == f'{copy}/epoch_4.pth'
    hub = torch.load(copy / 'epoch_4.pth', weights_only=False)['message_hub']
    info = hub['runtime_info']
    assert info['last_ckpt'] == 'epoch_4.pth'
    assert info['best_ckpt'] == 'best_mean_epoch_3.pth'


def test_several_best_ones(tmp_path, train):
    """Each score has its own; those of the original stay."""
    toy_scores = [dict(a=5.0, b=1.0), dict(a=1.0, b=2.0)]
    options = dict(save_best=['a', 'b'], rule='greater')
    train(tmp_path / 'first', epochs=2, scores=toy_scores, **options)
    before = content(tmp_path / 'first')
    assert 'best_a_epoch_1.pth' in before
    assert 'best_b_epoch_2.pth' in before
    copy = tmp_path / 'copy'
    shutil.copytree(tmp_path / 'first', copy)
    scores = [dict(a=9.0, b=0.0), dict(a=0.0, b=9.0)]
    train(copy, '--resume', scores=scores, **options)
    assert content(tmp_path / 'first') == before
    assert [name for name in files(copy) if 'best' in name] == [
        'best_a_epoch_3.pth',
        'best_b_epoch_4.pth',
    ]


def test_file_of_another_run(tmp_path, first, train):
    """Neither the other run's checkpoints go nor those of the same name."""
    other = tmp_path / 'other'
    other.mkdir()
    (other / 'epoch_1.pth').write_bytes(b'of somebody else')
    (other / 'best_mean_epoch_1.pth').write_bytes(b'of somebody else')
    before = content(first)
    output = train(other, '--resume', first / 'epoch_2.pth')
    assert 'is outside of this work dir' in output
    assert content(first) == before
    for name in ('epoch_1.pth', 'best_mean_epoch_1.pth'):
        assert (other / name).read_bytes() == b'of somebody else'
    assert set(AFTER) <= set(files(other))


def test_checkpoints_in_a_folder_of_their_own(tmp_path, train):
    out = tmp_path / 'out'
    train(tmp_path / 'w', epochs=2, scores=FIRST, out_dir=str(out))
    assert 'epoch_2.pth' in files(out / 'w')
    train(tmp_path / 'w', '--resume', out_dir=str(out))
    assert files(out / 'w') == AFTER
    assert files(tmp_path / 'w') == []
    # A copy without that setting has no checkpoints, and says so.
    before = content(out / 'w')
    shutil.copytree(tmp_path / 'w', tmp_path / 'copy')
    output = train(tmp_path / 'copy', '--resume', code=2)
    assert f'names {out}/w/epoch_4.pth, which is outside' in output
    assert 'name it with --resume FILE' in output
    assert 'To start anew, remove' in output
    assert content(out / 'w') == before


def test_saved_by_mmengine(tmp_path, train):
    """Whose checkpoints hold absolute paths."""
    cfg = toy.config(
        runner_type='Runner',
        train_cfg=dict(by_epoch=True, max_epochs=2, val_interval=1),
        val_evaluator=dict(type='ToyMetric', scores=list(FIRST)),
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook',
                interval=1,
                max_keep_ckpts=2,
                save_best='mean',
                rule='greater',
            )
        ),
        param_scheduler=[],
        work_dir=str(tmp_path / 'first'),
        experiment_name=str(tmp_path),
    )
    RUNNERS.build(Config(cfg)).train()
    before = content(tmp_path / 'first')
    copy = tmp_path / 'copy'
    shutil.copytree(tmp_path / 'first', copy)
    train(copy, '--resume')
    assert content(tmp_path / 'first') == before
    assert files(copy) == AFTER


def test_mmengine_goes_on_from_ours(tmp_path, first, monkeypatch):
    cfg = toy.config(
        runner_type='Runner',
        train_cfg=dict(by_epoch=True, max_epochs=3, val_interval=1),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1)),
        param_scheduler=[],
        work_dir=str(first),
        experiment_name=str(tmp_path),
        resume=True,
    )
    monkeypatch.chdir(tmp_path)
    RUNNERS.build(Config(cfg)).train()
    assert position(first, 'epoch_3.pth') == 18
