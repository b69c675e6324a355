import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time

import mmengine.device
import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import free_port, process_environ, start_ranks
from torch import distributed as dist

from mmext.engine import (
    close_process_group,
    init_process_group,
    keep_freed_memory,
    pin_device,
    resolve_device,
)
from mmext.engine.launch import default_store
from mmext.utils.launcher_env import (
    LauncherEnv,
    read_launcher_env,
)

TORCHRUN = dict(
    RANK='3',
    WORLD_SIZE='4',
    LOCAL_RANK='1',
    LOCAL_WORLD_SIZE='2',
    MASTER_ADDR='node0',
    MASTER_PORT='1234',
)
SLURM = dict(
    SLURM_PROCID='5',
    SLURM_NTASKS='8',
    SLURM_LOCALID='1',
    SLURM_NTASKS_PER_NODE='4',
    SLURM_NODELIST='gpu[07-08]',
    SLURM_JOB_ID='70007',
)
OPENMPI = dict(
    OMPI_COMM_WORLD_RANK='1',
    OMPI_COMM_WORLD_SIZE='2',
    OMPI_COMM_WORLD_LOCAL_RANK='1',
    OMPI_COMM_WORLD_LOCAL_SIZE='2',
)


@pytest.mark.parametrize(
    ('launcher', 'environ', 'expected'),
    [
        ('pytorch', TORCHRUN, (3, 4, 1, 2, 'node0', 1234)),
        # Slurm finds host and port by itself, those of the step first.
        ('slurm', SLURM, (5, 8, 1, 4, 'gpu07', 30007)),
        (
            'slurm',
            {**SLURM, 'MASTER_ADDR': 'x', 'MASTER_PORT': '9'},
            (5, 8, 1, 4, 'x', 9),
        ),
        (
            'slurm',
            {**SLURM, 'SLURM_STEP_NODELIST': 'n[5,7]x,m'},
            (5, 8, 1, 4, 'n5x', 30007),
        ),
        (
            'slurm',
            {
                **SLURM,
                'SLURM_NTASKS_PER_NODE': '4(x2)',
                'SLURM_GPUS_PER_TASK': '1',
            },
            (5, 8, 1, 4, 'gpu07', 30007, True),
        ),
        # On one machine no address is needed.
        ('mpi', OPENMPI, (1, 2, 1, 2, '127.0.0.1', 29500)),
        (
            'mpi',
            dict(PMI_RANK='0', PMI_SIZE='2', MPI_LOCALRANKID='0')
            | dict(MASTER_ADDR='a'),
            (0, 2, 0, None, 'a', 29500),
        ),
    ],
)
def test_environment(launcher, environ, expected):
    assert read_launcher_env(launcher, environ) == LauncherEnv(*expected)


@pytest.mark.parametrize(
    ('launcher', 'environ', 'message'),
    [
        ('pytorch', {}, 'must set .*RANK, WORLD_SIZE, LOCAL_RANK.*; start'),
        ('slurm', {}, 'SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID.*; start'),
        ('mpi', {}, 'OMPI_COMM_WORLD_RANK or PMI_RANK.*; start'),
        ('pytorch', {**TORCHRUN, 'MASTER_ADDR': ''}, 'needs MASTER_ADDR'),
        (
            'mpi',
            {**OPENMPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'},
            "'mpi' needs MASTER_ADDR",
        ),
        (
            'pytorch',
            {**TORCHRUN, 'RANK': 'one'},
            'RANK must be a whole number, got',
        ),
        ('pytorch', {**TORCHRUN, 'RANK': '4'}, 'got rank 4 of 4'),
        ('none', {}, 'launcher must be one of'),
        (
            'slurm',
            {**SLURM, 'SLURM_NODELIST': ''},
            'SLURM_NODELIST must name a host|MASTER_ADDR',
        ),
    ],
)
def test_rejects_environment(launcher, environ, message):
    with pytest.raises(ValueError, match=message):
        read_launcher_env(launcher, environ)


CPU = torch.device('cpu')


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


def test_group_of_one(environ):
    init_process_group(env(), CPU, dict(backend='nccl', timeout=30))
    try:
        assert dist.get_backend() == 'gloo'
        assert os.environ['GLOO_SOCKET_IFNAME'] in ('lo', 'lo0')
        assert (os.environ['RANK'], os.environ['WORLD_SIZE']) == ('0', '1')
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


def test_failed_process_does_not_wait(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(dist, 'is_initialized', lambda: True)
    monkeypatch.setattr(dist, 'destroy_process_group', never.wait)
    monkeypatch.setattr('mmext.engine.launch._CLOSE_TIMEOUT_S', 0.1)
    start = time.monotonic()
    close_process_group(failed=True)
    assert time.monotonic() - start < 30
    never.set()


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that the machine has a number of GPUs."""

    def pretend(count):
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: count > 0)
        monkeypatch.setattr(torch.cuda, 'device_count', lambda: count)

    return pretend


def device_env(local_rank=0, local_world_size=2, **kwargs):
    return LauncherEnv(
        local_rank, 4, local_rank, local_world_size, 'a', 1, **kwargs
    )


@pytest.mark.parametrize(
    ('device', 'count', 'env', 'expected'),
    [
        ('auto', 0, None, 'cpu'),
        ('auto', 2, None, 'cuda:0'),
        ('cuda', 2, None, 'cuda:0'),
        ('cuda:1', 2, None, 'cuda:1'),
        ('cpu', 2, None, 'cpu'),
        # Each rank has its own, or the only one that it sees.
        ('auto', 2, device_env(1), 'cuda:1'),
        ('auto', 0, device_env(1), 'cpu'),
        ('auto', 1, device_env(1, own_device=True), 'cuda:0'),
    ],
)
def test_device(gpus, device, count, env, expected):
    gpus(count)
    assert resolve_device(device, env) == torch.device(expected)


@pytest.mark.parametrize(
    ('device', 'count', 'env', 'message'),
    [
        *(
            (device, 0, None, "device must be 'auto', 'cpu'")
            for device in ('gpu', 'cuda:', 'cuda:-1', '', None, 0)
        ),
        ('cuda:0', 0, device_env(), 'sees no CUDA device'),
        ('cuda:2', 2, None, "got 'cuda:2', but there are only 2"),
        # On every rank, not only on those without one.
        ('auto', 2, device_env(0, 3), 'got 3 processes and 2 CUDA'),
        ('auto', 2, device_env(2, 3), 'got 3 processes and 2 CUDA'),
        ('cuda:1', 2, device_env(), 'must have no index'),
    ],
)
def test_rejects_device(gpus, monkeypatch, device, count, env, message):
    gpus(count)
    monkeypatch.setattr(torch.version, 'cuda', '12.6')
    with pytest.raises(ValueError, match=message):
        resolve_device(device, env)


def test_rejects_cuda_without_cuda(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(torch.version, 'cuda', None)
    with pytest.raises(ValueError, match='without CUDA; use --device cpu'):
        resolve_device('cuda')


def test_pin_device_holds_mmengine():
    pin_device(torch.device('cpu'))
    assert mmengine.device.get_device() == 'cpu'
    mmengine.device.utils.DEVICE = 'cuda'
    pin_device(torch.device('cpu'))
    assert mmengine.device.get_device() == 'cpu'


@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize(
    'missing', [1, pytest.param(0, marks=pytest.mark.slow)]
)
def test_a_rank_that_does_not_arrive_is_named(tmp_path, missing):
    """Rank 0 serves the store: without it there is nothing to meet at."""
    cfg = toy.config()
    cfg['env_cfg']['dist_cfg']['timeout'] = 2
    path = toy.write(tmp_path / 'cfg.py', cfg)
    here = 1 - missing
    ranks = start_ranks(
        [path, '--work-dir', tmp_path / 'w'],
        2,
        tmp_path / 'out',
        only=[here],
    )
    assert ranks.wait() == [1]
    output = ranks.output(here)
    if missing:
        assert (
            'TimeoutError: 1 of 2 processes did not arrive within 2 s '
            '(env_cfg.dist_cfg.timeout): rank 1 is missing. These are here: '
            f'rank 0 ({socket.gethostname()}, pid {ranks.pids[0]})'
        ) in output
    else:
        assert 'TimeoutError: rank 0, which all ranks meet at' in output
        assert 'within 2 s (env_cfg.dist_cfg.timeout)' in output


FREED = """
import json, resource, sys
import torch
from mmext.engine import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory()
for _ in range(30):
    torch.ones(16 << 20)
before = faults()
for _ in range(10):
    torch.ones(16 << 20)
print(json.dumps([kept, faults() - before]))
"""
GLIBC = pytest.mark.skipif(
    platform.libc_ver()[0] != 'glibc', reason='other C libraries have no knobs'
)


@pytest.mark.slow
@GLIBC
def test_freed_memory_is_used_again():
    """Page faults of ten blocks of 64 MiB, 16384 pages each."""
    done = subprocess.run(
        [sys.executable, '-c', FREED],
        env=process_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = json.loads(done.stdout.splitlines()[-1])
    assert kept
    assert faults < 1000


@pytest.mark.parametrize(
    'environ',
    [
        {'MALLOC_MMAP_MAX_': '65536'},
        {'GLIBC_TUNABLES': 'glibc.malloc.arena_max=1'},
        {'LD_PRELOAD': 'libjemalloc.so.2'},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_the_allocator_that_the_user_chose_stays(environ):
    assert not keep_freed_memory(environ)
