import os
import sys
import threading
import time

import pytest
import torch
from mmengine.dist import all_gather_object, broadcast
from torch import distributed as dist
from toy_ranks import free_port, run_on_ranks

from mmext.engine import close_process_group, init_process_group
from mmext.engine.dist_setup import (
    choose_backend,
    default_store,
    loopback_interface,
)
from mmext.engine.launcher import LauncherEnv

CPU, GPU = torch.device('cpu'), torch.device('cuda', 0)


def env():
    return LauncherEnv(0, 1, 0, 1, '127.0.0.1', free_port())


@pytest.fixture
def environ(monkeypatch):
    """What the process group writes into the environment is taken back."""
    for name in (
        'RANK',
        'WORLD_SIZE',
        'LOCAL_RANK',
        'MASTER_ADDR',
        'MASTER_PORT',
        'GLOO_SOCKET_IFNAME',
    ):
        monkeypatch.setenv(name, 'x')
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ('device', 'asked', 'backend'),
    [
        (CPU, None, 'gloo'),
        (CPU, 'nccl', 'gloo'),
        (CPU, 'mpi', 'mpi'),
        (GPU, None, 'nccl'),
        (GPU, 'nccl', 'nccl'),
        (GPU, 'gloo', 'gloo'),
    ],
)
def test_choose_backend(device, asked, backend):
    assert choose_backend(device, asked) == backend


def test_loopback_interface():
    assert loopback_interface() in (
        ('lo',) if sys.platform == 'linux' else ('lo', 'lo0', None)
    )


def test_group_of_one(environ):
    init_process_group(env(), CPU, dict(backend='nccl', timeout=30))
    try:
        assert dist.get_backend() == 'gloo'
        assert os.environ['GLOO_SOCKET_IFNAME'] == loopback_interface()
        default_store().set('a', 'b')
        assert default_store().get('a') == b'b'
    finally:
        close_process_group()
    assert not dist.is_initialized()
    close_process_group()  # of nothing


def test_own_interface_and_port_are_kept(environ):
    environ.setenv('GLOO_SOCKET_IFNAME', 'lo')
    port = free_port()
    init_process_group(env(), CPU, dict(port=port))
    close_process_group()
    assert os.environ['MASTER_PORT'] == str(port)


@pytest.mark.parametrize(
    ('cfg', 'message'),
    [
        (dict(bakend='gloo'), r"only the keys .*, got \['bakend'\]"),
        (
            dict(init_backend='deepspeed'),
            "init_backend must be 'torch', got 'de",
        ),
        (
            dict(timeout=0),
            'timeout must be a positive number of seconds, got 0',
        ),
        (dict(timeout='1h'), "positive number of seconds, got '1h'"),
    ],
)
def test_rejects(cfg, message):
    with pytest.raises(ValueError, match=message):
        init_process_group(env(), CPU, cfg)
    assert not dist.is_initialized()


def talk():
    value = torch.tensor([float(dist.get_rank() + 1)])
    broadcast(value)
    assert value.item() == 1
    assert all_gather_object(dist.get_rank()) == [0, 1]


def test_two_processes_on_a_cpu(tmp_path):
    ranks = run_on_ranks(talk, 2, tmp_path / 'out')
    assert ranks.wait() == [0, 0], ranks.output()


def test_failed_process_does_not_wait(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(dist, 'is_initialized', lambda: True)
    monkeypatch.setattr(dist, 'destroy_process_group', never.wait)
    monkeypatch.setattr('mmext.engine.dist_setup._CLOSE_TIMEOUT_S', 0.1)
    start = time.monotonic()
    close_process_group(failed=True)
    assert time.monotonic() - start < 30
    never.set()
