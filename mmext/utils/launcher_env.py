"""Who started this process, and which of how many it is.

The environment variables of torchrun, Slurm and MPI, read into one record.
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')

# Field -> variables that may hold it, the first one set is taken.
_VARIABLES = {
    'pytorch': {
        'rank': ('RANK',),
        'world_size': ('WORLD_SIZE',),
        'local_rank': ('LOCAL_RANK',),
        'local_world_size': ('LOCAL_WORLD_SIZE',),
    },
    'slurm': {
        'rank': ('SLURM_PROCID',),
        'world_size': ('SLURM_NTASKS',),
        'local_rank': ('SLURM_LOCALID',),
        'local_world_size': ('SLURM_NTASKS_PER_NODE',),
    },
    'mpi': {
        'rank': ('OMPI_COMM_WORLD_RANK', 'PMI_RANK'),
        'world_size': ('OMPI_COMM_WORLD_SIZE', 'PMI_SIZE'),
        'local_rank': ('OMPI_COMM_WORLD_LOCAL_RANK', 'MPI_LOCALRANKID'),
        'local_world_size': ('OMPI_COMM_WORLD_LOCAL_SIZE', 'MPI_LOCALNRANKS'),
    },
}
_REMEDIES = {
    'pytorch': 'start with torchrun or `bash tools/dist_train.sh CONFIG N`',
    'slurm': 'start with `bash tools/slurm_train.sh ...` or srun',
    'mpi': 'start with mpirun',
}
_DEFAULT_PORT = 29500
# Seconds rank 0 has to print an error before other ranks print theirs.
_HEAD_START_S = 5.0


@dataclass(frozen=True)
class LauncherEnv:
    """Place of this process among all processes of a run."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    master_addr: str
    master_port: int
    own_device: bool = False


def first_slurm_host(nodelist: str) -> str:
    """First host of a Slurm node list.

    Examples:
        >>> first_slurm_host('gpu[007-010,12],login1')
        'gpu007'
        >>> first_slurm_host('rack[1-2]n[03,05]-ib')
        'rack1n03-ib'
    """
    first = re.match(r'(?:[^,\[]|\[[^\]]*\])*', nodelist.strip()).group()
    if not first:
        raise ValueError(
            f'SLURM_NODELIST must name a host, got {nodelist!r}; set '
            'MASTER_ADDR to the host of rank 0'
        )
    return re.sub(r'\[(\w+)[^\]]*\]', r'\1', first)


def _integer(name: str, text: str) -> int:
    # Slurm writes counts of several nodes as '4(x2)'.
    match = re.fullmatch(r'(\d+)(\(x\d+\))?', text.strip())
    if match is None:
        raise ValueError(
            f'{name} must be a whole number, got {text!r}; it is set by the '
            'launcher'
        )
    return int(match.group(1))


def _master(
    launcher: str, environ: Mapping[str, str], one_machine: bool
) -> tuple[str, int]:
    """Address and port of rank 0."""
    address = environ.get('MASTER_ADDR')
    if not address and launcher == 'slurm':
        nodes = environ.get('SLURM_STEP_NODELIST') or environ.get(
            'SLURM_NODELIST', ''
        )
        address = first_slurm_host(nodes)
    if not address and launcher == 'mpi' and one_machine:
        address = '127.0.0.1'
    if not address:
        raise ValueError(
            f'launcher {launcher!r} needs MASTER_ADDR, the host of rank 0, '
            f'got none; {_REMEDIES[launcher]}, or set it yourself'
        )
    if 'MASTER_PORT' in environ:
        return address, _integer('MASTER_PORT', environ['MASTER_PORT'])
    if launcher == 'slurm' and environ.get('SLURM_JOB_ID', '').isdigit():
        # Two jobs on one machine would meet on a fixed port.
        return address, 20000 + int(environ['SLURM_JOB_ID']) % 20000
    return address, _DEFAULT_PORT


def read_launcher_env(
    launcher: str, environ: Mapping[str, str]
) -> LauncherEnv:
    """Read what a launcher says to its processes.

    Args:
        launcher: ``'pytorch'`` (torchrun), ``'slurm'`` or ``'mpi'``.
        environ: The environment, usually ``os.environ``.

    Raises:
        ValueError: If the launcher is unknown, a variable is missing or not
            a number, or the rank does not fit the number of processes.
    """
    if launcher not in _VARIABLES:
        raise ValueError(
            f'launcher must be one of {LAUNCHERS[1:]}, got {launcher!r}'
        )
    numbers = {}
    missing = []
    for field, names in _VARIABLES[launcher].items():
        name = next((name for name in names if name in environ), None)
        if name is not None:
            numbers[field] = _integer(name, environ[name])
        elif field == 'local_world_size':
            numbers[field] = None
        else:
            missing.append(' or '.join(names))
    if missing:
        raise ValueError(
            f'launcher {launcher!r} must set {", ".join(missing)}, which is '
            f'not in the environment; {_REMEDIES[launcher]}, or use '
            '--launcher none for one process'
        )
    if numbers['rank'] >= numbers['world_size']:
        raise ValueError(
            'rank must be below the number of processes, got rank '
            f'{numbers["rank"]} of {numbers["world_size"]} from {launcher!r}'
        )
    one_machine = numbers['local_world_size'] == numbers['world_size']
    address, port = _master(launcher, environ, one_machine)
    return LauncherEnv(
        **numbers,
        master_addr=address,
        master_port=port,
        own_device=environ.get('SLURM_GPUS_PER_TASK') == '1'
        and launcher == 'slurm',
    )


def let_rank_0_print() -> None:
    """Wait in all ranks but 0, before an error that all may have is printed.

    In that time rank 0 prints it and ends, and the launcher ends the others.
    """
    names = (name for of in _VARIABLES.values() for name in of['rank'])
    rank = next((os.environ[name] for name in names if name in os.environ), 0)
    if str(rank) != '0':
        time.sleep(_HEAD_START_S)
