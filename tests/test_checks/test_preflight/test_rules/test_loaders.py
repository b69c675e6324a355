"""Settings of data loaders, and that PyTorch refuses what is an error."""

import pytest
import torch
from helpers.lint_findings import changed, lint
from mmengine.dataset import InfiniteSampler
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmext.checks.config import DELETE

LOADER = 'train_dataloader'
DATA = torch.zeros(4)


def test_without_workers():
    changes = {f'{LOADER}.num_workers': 0}
    (found,) = lint(changes, 'DATA001')
    assert found.key == f'{LOADER}.persistent_workers'
    assert found.options == {f'{LOADER}.persistent_workers': DELETE}
    with pytest.raises(ValueError, match='persistent_workers'):
        DataLoader(DATA, num_workers=0, persistent_workers=True)
    changes = {
        'val_dataloader.num_workers': 0,
        'val_dataloader.prefetch_factor': 2,
    }
    (found,) = lint(changes, 'DATA001')
    assert found.key == 'val_dataloader.prefetch_factor'
    with pytest.raises(ValueError, match='prefetch_factor'):
        DataLoader(DATA, num_workers=0, prefetch_factor=2)


def test_another_runner_takes_it_away():
    changes = {f'{LOADER}.num_workers': 0, 'runner_type': 'FlexibleRunner'}
    assert lint(changes, 'DATA001') == []


def test_shuffle_beside_a_sampler():
    (found,) = lint({f'{LOADER}.shuffle': True}, 'DATA002')
    assert found.options[f'{LOADER}.sampler.shuffle'] is True
    with pytest.raises(ValueError, match='shuffle'):
        DataLoader(DATA, shuffle=True, sampler=InfiniteSampler(DATA))


def test_drop_last_beside_a_batch_sampler():
    changes = {
        f'{LOADER}.batch_sampler': {'type': 'AspectRatioBatchSampler'},
        f'{LOADER}.drop_last': True,
    }
    (found,) = lint(changes, 'DATA002')
    assert found.key == f'{LOADER}.drop_last'
    with pytest.raises(ValueError, match='drop_last'):
        DataLoader(DATA, batch_sampler=[[0]], drop_last=True)


def test_no_sampler():
    (found,) = lint({f'{LOADER}.sampler': None}, 'DATA003')
    assert found.severity.name == 'ERROR'
    with pytest.raises(KeyError, match='sampler'):
        Runner.build_dataloader({'dataset': []})
    cfg = changed({})
    cfg.train_dataloader.sampler = None
    (found,) = lint(cfg, 'DATA003')
    assert found.severity.name == 'WARNING'
    sampler = {'type': 'DefaultSampler', 'shuffle': True}
    assert found.options == {f'{LOADER}.sampler': sampler}
    cfg = changed({})
    cfg.val_dataloader.sampler = None
    (found,) = lint(cfg, 'DATA003')
    assert found.severity.name == 'INFO'
    changes = {f'{LOADER}.sampler': None, f'{LOADER}.shuffle': True}
    alone = {'WORLD_SIZE': '1'}
    assert lint(changes, 'DATA003')
    assert lint(changes, 'DATA003', environ=alone) == []


def test_endless_epoch():
    sampler = {'type': 'InfiniteSampler', 'shuffle': True}
    (found,) = lint({f'{LOADER}.sampler': sampler}, 'DATA004')
    assert found.key == f'{LOADER}.sampler.type'
    loop = {'type': 'IterBasedTrainLoop', 'max_iters': 10}
    changes = {f'{LOADER}.sampler': sampler, 'train_cfg': loop}
    assert lint(changes, 'DATA004') == []
    # The loop over epochs has no other end than that of the data.
    batches = iter(DataLoader(DATA, sampler=InfiniteSampler(range(4))))
    assert len([next(batches) for _ in range(20)]) == 20


def test_unknown_argument():
    (found,) = lint({f'{LOADER}.batchsize': 2}, 'DATA005')
    assert found.names == ('batch_size',)
    (found,) = lint({f'{LOADER}.qqq': 2}, 'DATA005')
    assert found.remedy == 'remove it'
    known = {
        f'{LOADER}.pin_memory': True,
        f'{LOADER}.num_batch_per_epoch': 3,
        f'{LOADER}.collate_fn': {'type': 'yolox_collate'},
    }
    assert lint(known, 'DATA005') == []


def test_shuffled_the_wrong_way():
    changes = {
        f'{LOADER}.sampler.shuffle': False,
        'val_dataloader.sampler.shuffle': True,
    }
    found = lint(changes, 'DATA006')
    assert [each.key for each in found] == [
        f'{LOADER}.sampler.shuffle',
        'val_dataloader.sampler.shuffle',
    ]
