"""Resuming where the work dir is not what and where it was."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.config import Config
from mmengine.registry import METRICS, RUNNERS

from mmext.utils.archive import Coverage, check_archive

pytestmark = pytest.mark.xdist_group('processes')

# Scores of two epochs, and of two more: the best are epoch 1 and epoch 3.
FIRST, SECOND = [5.0, 1.0], [9.0, 8.0]


@METRICS.register_module(force=True)
class ScoresMetric(toy.ToyMetric):
    """Says a number, or several ones by name, time after time."""

    def compute_metrics(self, results):
        score = self.scores.pop(0)
        return score if isinstance(score, dict) else dict(mean=score)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    toy.quicken(monkeypatch)


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


@pytest.mark.slow
def test_copy_behind_its_original(tmp_path, first, train):
    """The original went on, and has what the copy's pointer names not."""
    shutil.copytree(first, tmp_path / 'copy')
    train(first, '--resume')
    before = content(first)
    output = train(tmp_path / 'copy', '--resume')
    assert f'Resuming from {tmp_path}/copy/epoch_2.pth' in output
    assert content(first) == before
    assert files(tmp_path / 'copy') == files(first) == AFTER


@pytest.mark.parametrize(
    'how',
    [
        'moved',
        pytest.param('link', marks=pytest.mark.slow),
        pytest.param('copy of a copy', marks=pytest.mark.slow),
        pytest.param('relative', marks=pytest.mark.slow),
    ],
)
def test_other_paths_to_it(tmp_path, first, train, how, monkeypatch):
    folder = tmp_path / 'second'
    if how == 'moved':
        shutil.move(first, folder)
    elif how == 'link':
        folder.symlink_to(first)
    elif how == 'relative':
        monkeypatch.chdir(tmp_path)
        folder = Path('first')
    else:
        shutil.copytree(first, tmp_path / 'between')
        shutil.copytree(tmp_path / 'between', folder)
        shutil.rmtree(tmp_path / 'between')
        shutil.rmtree(first)
    train(folder, '--resume')
    assert files(folder) == AFTER


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
    assert 'to start anew, remove' in output
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


def test_clock_that_was_set_back(tmp_path, first, train, monkeypatch):
    """Neither the time inside nor that of the file says what is newest."""
    for name, when in (('epoch_1.pth', 4e9), ('epoch_2.pth', 1e9)):
        path = first / name
        checkpoint = torch.load(path, weights_only=False)
        checkpoint['meta']['time'] = f'{int(when)}'
        torch.save(checkpoint, path)
        os.utime(path, (when, when))
    (first / 'last_checkpoint').write_text(str(first / 'epoch_1.pth'))
    assert f'Resuming from {first}/epoch_2.pth' in train(first, '--resume')


def test_two_trainings_in_one_folder(tmp_path, train):
    """A new one begins where there are later checkpoints of another one."""
    folder = tmp_path / 'w'
    train(folder, epochs=4, scores=[1, 2, 3, 4], max_keep_ckpts=-1)
    train(folder, epochs=1, scores=[1], max_keep_ckpts=-1)
    output = train(folder, '--resume', epochs=2, scores=[1], max_keep_ckpts=-1)
    assert f'Resuming from {folder}/epoch_1.pth' in output
    assert 'are of another training in this folder and passed over' in output


# Damage -------------------------------------------------------------------


def damage(path, word=None):
    """Flip a bit in the middle of a file, or in a word of it."""
    data = bytearray(path.read_bytes())
    data[data.index(word) if word else len(data) // 2] ^= 4
    path.write_bytes(data)


def test_saved_files_are_sealed(first):
    for path in first.glob('*.pth'):
        assert check_archive(path) is Coverage.ALL


@pytest.mark.parametrize(
    ('word', 'world_size'),
    [
        (None, 1),
        (b'iter', 2),
        pytest.param(b'PK\1\2', 1, marks=pytest.mark.slow),
        pytest.param(None, 2, marks=pytest.mark.slow),
    ],
)
def test_damage_goes_back_to_the_one_before(tmp_path, train, word, world_size):
    first = tmp_path / 'first'
    train(first, epochs=2, scores=FIRST, world_size=world_size)
    damage(first / 'epoch_2.pth', word)
    output = train(first, '--resume', scores=[9, 8, 7], world_size=world_size)
    (line,) = (
        line for line in output.splitlines() if 'passed over epoch_2' in line
    )
    assert 'is damaged' in line
    assert line.endswith('going on from epoch_1.pth')
    assert f'Resuming from {first}/epoch_1.pth' in output
    assert position(first, 'epoch_4.pth') == 24 // world_size


def test_damaged_file_that_is_named(tmp_path, first, train):
    damage(first / 'epoch_2.pth')
    output = train(first, '--resume', first / 'epoch_2.pth', code=1)
    assert "epoch_2.pth' is damaged: " in output
    assert 'take an earlier one' in output
    output = train(
        tmp_path / 'w',
        '--cfg-options',
        f'load_from={first}/epoch_2.pth',
        code=1,
    )
    assert "epoch_2.pth' is damaged: " in output


@pytest.mark.slow
def test_old_format_is_resumed_from_with_a_warning(first, train):
    path = first / 'epoch_2.pth'
    checkpoint = torch.load(path, weights_only=False)
    torch.save(checkpoint, path, _use_new_zipfile_serialization=False)
    output = train(first, '--resume')
    assert f'{path} has no checksums' in output
    assert files(first) == AFTER
