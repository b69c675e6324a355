import pytest

from mmext.engine.launcher import (
    LauncherEnv,
    export_launcher_env,
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
