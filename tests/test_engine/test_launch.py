import os
import socket
import sys
import threading
import time

import mmengine.device
import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import free_port, run_on_ranks, start_ranks
from mmengine.dist import all_gather_object, broadcast
from torch import distributed as dist

from mmext.engine import (
    close_process_group,
    init_process_group,
    pin_device,
    resolve_device,
)
from mmext.engine.launch import (
    choose_backend,
    default_store,
    export_launcher_env,
    loopback_interface,
)
from mmext.utils.launcher_env import (
    LauncherEnv,
    first_slurm_host,
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


def test_torchrun():
    env = read_launcher_env('pytorch', TORCHRUN)
    assert env == LauncherEnv(3, 4, 1, 2, 'node0', 1234)


def test_slurm_finds_host_and_port_by_itself():
    env = read_launcher_env('slurm', SLURM)
    assert env == LauncherEnv(5, 8, 1, 4, 'gpu07', 30007)
    set_by_user = {**SLURM, 'MASTER_ADDR': 'x', 'MASTER_PORT': '9'}
    env = read_launcher_env('slurm', set_by_user)
    assert (env.master_addr, env.master_port) == ('x', 9)


def test_slurm_step_is_preferred_to_its_job():
    environ = {**SLURM, 'SLURM_STEP_NODELIST': 'gpu08'}
    assert read_launcher_env('slurm', environ).master_addr == 'gpu08'


def test_slurm_uneven_counts_and_own_device():
    environ = {
        **SLURM,
        'SLURM_NTASKS_PER_NODE': '4(x2)',
        'SLURM_GPUS_PER_TASK': '1',
    }
    env = read_launcher_env('slurm', environ)
    assert env.local_world_size == 4
    assert env.own_device
    assert not read_launcher_env('slurm', SLURM).own_device


def test_mpi_on_one_machine_needs_no_address():
    env = read_launcher_env('mpi', OPENMPI)
    assert env == LauncherEnv(1, 2, 1, 2, '127.0.0.1', 29500)


def test_mpi_of_another_kind():
    environ = dict(
        PMI_RANK='0', PMI_SIZE='2', MPI_LOCALRANKID='0', MASTER_ADDR='a'
    )
    env = read_launcher_env('mpi', environ)
    assert (env.world_size, env.local_world_size) == (2, None)


@pytest.mark.parametrize(
    'nodes',
    [
        ('a', 'a'),
        ('a,b', 'a'),
        ('n[3]', 'n3'),
        ('n[03-9],m', 'n03'),
        ('n[5,7]x', 'n5x'),
    ],
)
def test_first_slurm_host(nodes):
    assert first_slurm_host(nodes[0]) == nodes[1]


@pytest.mark.parametrize(
    ('launcher', 'environ', 'missing'),
    [
        ('pytorch', {}, 'RANK, WORLD_SIZE, LOCAL_RANK'),
        ('slurm', {}, 'SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID'),
        ('mpi', {}, 'OMPI_COMM_WORLD_RANK or PMI_RANK'),
    ],
)
def test_rejects_missing_variables(launcher, environ, missing):
    with pytest.raises(ValueError, match=f'must set .*{missing}.*; start'):
        read_launcher_env(launcher, environ)


def test_rejects_missing_address():
    environ = {k: v for k, v in TORCHRUN.items() if k != 'MASTER_ADDR'}
    with pytest.raises(ValueError, match='needs MASTER_ADDR'):
        read_launcher_env('pytorch', environ)
    environ = {**OPENMPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'}
    with pytest.raises(ValueError, match="'mpi' needs MASTER_ADDR"):
        read_launcher_env('mpi', environ)


def test_rejects_what_is_no_number():
    with pytest.raises(ValueError, match='RANK must be a whole number, got'):
        read_launcher_env('pytorch', {**TORCHRUN, 'RANK': 'one'})


def test_rejects_rank_beyond_size():
    with pytest.raises(ValueError, match='got rank 4 of 4'):
        read_launcher_env('pytorch', {**TORCHRUN, 'RANK': '4'})


def test_rejects_unknown_launcher():
    with pytest.raises(ValueError, match='launcher must be one of'):
        read_launcher_env('none', {})


def test_rejects_empty_node_list():
    with pytest.raises(ValueError, match='SLURM_NODELIST must name a host'):
        first_slurm_host('')


def test_export():
    environ = {}
    export_launcher_env(read_launcher_env('slurm', SLURM), environ)
    assert environ == dict(
        RANK='5',
        WORLD_SIZE='8',
        LOCAL_RANK='1',
        MASTER_ADDR='gpu07',
        MASTER_PORT='30007',
    )


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


@pytest.mark.xdist_group('processes')
def test_two_processes_on_a_cpu(tmp_path):
    ranks = run_on_ranks(talk, 2, tmp_path / 'out')
    assert ranks.wait() == [0, 0], ranks.output()


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


def test_single_process(gpus):
    gpus(0)
    assert resolve_device('auto') == torch.device('cpu')
    assert resolve_device('cpu') == torch.device('cpu')
    gpus(2)
    assert resolve_device('auto') == torch.device('cuda', 0)
    assert resolve_device('cuda') == torch.device('cuda', 0)
    assert resolve_device('cuda:1') == torch.device('cuda', 1)
    assert resolve_device('cpu') == torch.device('cpu')


def test_each_rank_has_its_gpu(gpus):
    gpus(2)
    assert resolve_device('auto', device_env(1)) == torch.device('cuda', 1)
    assert resolve_device('cpu', device_env(1)) == torch.device('cpu')
    gpus(0)
    assert resolve_device('auto', device_env(1)) == torch.device('cpu')


def test_gpu_that_only_this_rank_sees(gpus):
    gpus(1)
    assert resolve_device('auto', device_env(1, 2, own_device=True)).index == 0


@pytest.mark.parametrize('device', ['gpu', 'cuda:', 'cuda:-1', '', None, 0])
def test_rejects_other_texts(device):
    with pytest.raises(ValueError, match="device must be 'auto', 'cpu'"):
        resolve_device(device)


def test_rejects_cuda_where_there_is_none(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(torch.version, 'cuda', None)
    with pytest.raises(ValueError, match='without CUDA; use --device cpu'):
        resolve_device('cuda')
    monkeypatch.setattr(torch.version, 'cuda', '12.6')
    with pytest.raises(ValueError, match='sees no CUDA device'):
        resolve_device('cuda:0', device_env())


def test_rejects_index_that_does_not_exist(gpus):
    gpus(2)
    with pytest.raises(ValueError, match="got 'cuda:2', but there are only 2"):
        resolve_device('cuda:2')


@pytest.mark.parametrize('rank', [0, 2])
def test_rejects_more_processes_than_devices(gpus, rank):
    """On every rank, not only on those without one."""
    gpus(2)
    with pytest.raises(ValueError, match='got 3 processes and 2 CUDA'):
        resolve_device('auto', device_env(rank, 3))


def test_rejects_index_with_a_launcher(gpus):
    gpus(2)
    with pytest.raises(ValueError, match='must have no index'):
        resolve_device('cuda:1', device_env())


def test_pin_device_holds_mmengine():
    pin_device(torch.device('cpu'))
    assert mmengine.device.get_device() == 'cpu'
    mmengine.device.utils.DEVICE = 'cuda'
    pin_device(torch.device('cpu'))
    assert mmengine.device.get_device() == 'cpu'


def test_pin_device_chooses_the_gpu(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, 'set_device', chosen.append)
    pin_device(torch.device('cuda', 1))
    assert chosen == [torch.device('cuda', 1)]
    assert mmengine.device.get_device() == 'cuda'


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
