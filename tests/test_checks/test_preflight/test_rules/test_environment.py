"""Environment variables and the work dir."""

import os
import socket

import pytest
import torch
from helpers.lint_findings import lint

RANKS = {
    'RANK': '0',
    'LOCAL_RANK': '0',
    'WORLD_SIZE': '2',
    'LOCAL_WORLD_SIZE': '2',
    'MASTER_ADDR': 'localhost',
    'MASTER_PORT': '29500',
}


def rules(environ, changes=None):
    return [each.rule for each in lint(changes or {}, 'ENV', environ=environ)]


@pytest.mark.parametrize('environ', [{}, RANKS, {'LOCAL_RANK': '0'}])
def test_clean(environ):
    assert rules(environ) == []


@pytest.mark.parametrize(
    ('changes', 'text'),
    [
        ({'RANK': '2'}, 'rank must be below'),
        ({'RANK': ''}, 'RANK must be a whole number'),
        ({'WORLD_SIZE': 'two'}, 'WORLD_SIZE must be a whole number'),
        ({'LOCAL_RANK': '2'}, 'LOCAL_RANK must be below'),
        ({'LOCAL_WORLD_SIZE': '3'}, 'not above WORLD_SIZE'),
        ({'MASTER_ADDR': ''}, 'needs MASTER_ADDR'),
    ],
)
def test_ranks_that_do_not_fit(changes, text):
    (found,) = lint({}, 'ENV001', environ={**RANKS, **changes})
    assert text in found.message


def test_port():
    with socket.socket() as server:
        server.bind(('', 0))
        server.listen()
        port = str(server.getsockname()[1])
        assert rules({'MASTER_PORT': port}) == ['ENV002']
        # Inside of a launch, it is the launch that listens.
        assert rules({**RANKS, 'MASTER_PORT': port}) == []
    assert rules({'MASTER_PORT': port}) == []


@pytest.mark.parametrize('text', ['0', '65536', 'auto'])
def test_no_port(text):
    (found,) = lint({}, 'ENV002', environ={'MASTER_PORT': text})
    assert found.severity.name == 'ERROR'


@pytest.mark.parametrize(
    ('environ', 'expected'),
    [
        ({'CUDA_VISIBLE_DEVICES': '0,1'}, []),
        ({'CUDA_VISIBLE_DEVICES': ''}, []),
        ({'CUDA_VISIBLE_DEVICES': '-1'}, []),
        ({'CUDA_VISIBLE_DEVICES': '0,0'}, ['ENV003']),
        ({'CUDA_VISIBLE_DEVICES': '0,-1,1'}, ['ENV003']),
        ({'CUDA_VISIBLE_DEVICES': '0', 'LOCAL_WORLD_SIZE': '2'}, ['ENV003']),
        ({'CUDA_VISIBLE_DEVICES': '0,1', 'LOCAL_WORLD_SIZE': '2'}, []),
    ],
)
def test_devices(environ, expected):
    assert rules(environ) == expected


@pytest.mark.parametrize('cuda', [True, False])
@pytest.mark.parametrize('backend', ['gloo', 'nccl'])
def test_detail(monkeypatch, cuda, backend):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: cuda)
    changes = {'env_cfg': {'dist_cfg': {'backend': backend}}}
    found = rules({'TORCH_DISTRIBUTED_DEBUG': 'detail'}, changes)
    dies = backend == 'gloo' or not cuda
    assert found == (['ENV004'] if dies else [])
    assert rules({'TORCH_DISTRIBUTED_DEBUG': 'INFO'}, changes) == []


def test_threads(monkeypatch):
    monkeypatch.setattr(os, 'cpu_count', lambda: 8)
    assert rules({'OMP_NUM_THREADS': '1'}) == []
    assert rules({'OMP_NUM_THREADS': '4'}) == []
    assert rules({'OMP_NUM_THREADS': '8'}) == ['ENV005']


def test_work_dir(tmp_path, monkeypatch):
    assert rules({}, {'work_dir': str(tmp_path / 'a' / 'b')}) == []
    file = tmp_path / 'file'
    file.touch()
    (found,) = lint({'work_dir': str(file / 'b')}, 'ENV006')
    assert 'is a file' in found.message
    monkeypatch.setattr(os, 'access', lambda path, mode: False)
    (found,) = lint({'work_dir': str(tmp_path)}, 'ENV006')
    assert 'cannot be written to' in found.message
