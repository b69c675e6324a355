"""How the processes of a run meet, and which device each one gets."""

import ctypes
import itertools
import os
import platform
import re
import socket
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import mmengine.device.utils
import torch
from torch import distributed as dist

from ..utils.launcher_env import LauncherEnv
from ..utils.torch_compat import NetworkError, has_key, uses_libuv
from .distributed import RankWatch, start_watch, stop_watch

# A rank that fails ends its process, and the launcher ends the others. This
# is for the case that a rank hangs; it must be longer than the evaluation,
# during which all ranks wait for rank 0. As long as NCCL's own default.
DEFAULT_TIMEOUT_S = 600
_CLOSE_TIMEOUT_S = 2
_MAX_SHOWN = 8
# Process groups of this process, the same number on all ranks.
_MEETINGS = itertools.count()
_DIST_KEYS = ('backend', 'timeout', 'port', 'init_backend')


def choose_backend(device: torch.device, backend: str | None = None) -> str:
    """Backend of collectives; ``'nccl'`` falls back to gloo on CPU."""
    if device.type == 'cpu':
        return 'gloo' if backend in (None, 'nccl') else backend
    return backend or 'nccl'


def init_process_group(
    env: LauncherEnv,
    device: torch.device,
    dist_cfg: Mapping[str, Any] | None = None,
) -> None:
    """Join the processes of a run; returns when all have arrived.

    MMEngine's ``init_dist`` sets a CUDA device whatever the backend is, so
    it cannot join processes on a CPU.

    Args:
        env: Place of this process; exported to ``os.environ``.
        device: Device of this process.
        dist_cfg: ``env_cfg.dist_cfg`` of the config: ``backend`` (by default
            after the device), ``timeout`` in seconds (by default
            ``DEFAULT_TIMEOUT_S``) and ``port`` (Slurm and MPI).

    Raises:
        ValueError: If ``dist_cfg`` has another key, asks for another
            ``init_backend`` than ``'torch'`` or for a timeout that is not
            positive.
        TimeoutError: If a process did not arrive in time; it is named.
    """
    options = dict(dist_cfg or {})
    unknown = sorted(set(options) - set(_DIST_KEYS))
    if unknown:
        raise ValueError(
            f'env_cfg.dist_cfg must have only the keys {_DIST_KEYS}, got '
            f'{unknown}'
        )
    if options.get('init_backend', 'torch') != 'torch':
        raise ValueError(
            "env_cfg.dist_cfg.init_backend must be 'torch', got "
            f'{options["init_backend"]!r}; other engines need runner_type='
            "'FlexibleRunner'"
        )
    timeout = options.get('timeout', DEFAULT_TIMEOUT_S)
    if not isinstance(timeout, (int, float)) or timeout <= 0:
        raise ValueError(
            'env_cfg.dist_cfg.timeout must be a positive number of seconds, '
            f'got {timeout!r}'
        )
    # What torch and MMEngine read.
    os.environ.update(
        RANK=str(env.rank),
        WORLD_SIZE=str(env.world_size),
        LOCAL_RANK=str(env.local_rank),
        MASTER_ADDR=env.master_addr,
        MASTER_PORT=str(env.master_port),
    )
    if options.get('port') and 'TORCHELASTIC_RUN_ID' not in os.environ:
        os.environ['MASTER_PORT'] = str(options['port'])
    backend = choose_backend(device, options.get('backend'))
    if 'gloo' in backend and env.local_world_size == env.world_size:
        # Gloo looks up the machine's own name, which a laptop or a container
        # often cannot resolve. Among processes of one machine it need not.
        names = {name for _, name in socket.if_nameindex()}
        for name in ('lo', 'lo0'):
            if name in names:
                os.environ.setdefault('GLOO_SOCKET_IFNAME', name)
    store = _meet(env, timeout)
    dist.init_process_group(
        backend,
        store=store,
        timeout=timedelta(seconds=timeout),
        rank=env.rank,
        world_size=env.world_size,
    )
    watch_ranks(timeout)


def watch_ranks(timeout: float) -> None:
    """Begin to watch the processes of the group.

    See :mod:`mmext.engine.distributed.watch`.

    A process that torchrun has started ends when torchrun is gone. Slurm and
    MPI end their processes themselves, and who starts them from a shell may
    want them to outlive it.
    """
    parent = os.getppid() if 'TORCHELASTIC_RUN_ID' in os.environ else None
    rank, size = dist.get_rank(), dist.get_world_size()
    serves = rank == 0 and not _is_store_of_torchrun()
    watch = RankWatch(rank, size, timeout, parent, serves)
    start_watch(watch, default_store())


def _is_store_of_torchrun() -> bool:
    """Whether torchrun serves the store of the run; else rank 0 does."""
    return os.environ.get('TORCHELASTIC_USE_AGENT_STORE') == 'True'


def _meet(env: LauncherEnv, timeout: float) -> dist.Store:
    """The store of a run, when all ranks have come to it.

    Raises:
        TimeoutError: If one has not come in time; it names the missing ones.
    """
    limit = timedelta(seconds=timeout)
    address, port = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
    by_launcher = _is_store_of_torchrun()
    try:
        if by_launcher:
            # PyTorch's way, which knows about restarted workers.
            meeting = dist.rendezvous(
                'env://', env.rank, env.world_size, timeout=limit
            )
            store = next(meeting)[0]
        else:
            # PyTorch's would wait here, and could not say for whom.
            store = dist.TCPStore(
                address,
                port,
                env.world_size,
                is_master=env.rank == 0,
                timeout=limit,
                wait_for_workers=False,
                multi_tenant=True,
                use_libuv=uses_libuv(),
            )
    except NetworkError as error:
        if env.rank == 0 and not by_launcher:
            raise
        server = 'torchrun' if by_launcher else 'rank 0'
        raise TimeoutError(
            f'{server}, which all ranks meet at, did not answer on '
            f'{address}:{port} within {timeout:g} s (env_cfg.dist_cfg.timeout)'
            f'; see its output, or MASTER_ADDR and MASTER_PORT: {error}'
        ) from error
    store = dist.PrefixStore(f'mmext/{next(_MEETINGS)}', store)
    keys = [f'here/{rank}' for rank in range(env.world_size)]
    store.set(keys[env.rank], f'{socket.gethostname()}, pid {os.getpid()}')
    try:
        store.wait(keys, limit)
    except RuntimeError as error:
        here = [rank for rank, key in enumerate(keys) if has_key(store, key)]
        missing = sorted(set(range(env.world_size)) - set(here))
        locations = '; '.join(
            f'rank {rank} ({store.get(keys[rank]).decode()})'
            for rank in here[:_MAX_SHOWN]
        )
        raise TimeoutError(
            f'{len(missing)} of {env.world_size} processes did not arrive '
            f'within {timeout:g} s (env_cfg.dist_cfg.timeout): rank '
            f'{", ".join(map(str, missing[:_MAX_SHOWN]))} is missing. These '
            f'are here: {locations}. See the output of the missing ones, and '
            'whether all machines start as many processes'
        ) from error
    return store


def default_store() -> dist.Store:
    """Key-value store of the default process group."""
    return dist.distributed_c10d._get_default_store()


def close_process_group(*, failed: bool = False) -> None:
    """Leave the process group, if there is one.

    Args:
        failed: This process ends with an error. The others may be waiting
            for it in a collective, in which case leaving can block, so it is
            not waited for longer than two seconds.
    """
    if not failed:
        stop_watch()
    if dist.is_available() and dist.is_initialized():
        if failed:
            thread = threading.Thread(
                target=dist.destroy_process_group, name='close', daemon=True
            )
            thread.start()
            thread.join(_CLOSE_TIMEOUT_S)
        else:
            dist.destroy_process_group()
    if failed:
        # Last, as it may wait until others have printed their errors.
        stop_watch(failed=True)


_SYNTAX = re.compile(r'auto|cpu|cuda(:(?P<index>\d+))?')


def resolve_device(
    device: str = 'auto', env: LauncherEnv | None = None
) -> torch.device:
    """The device that this process has to use.

    Args:
        device: ``'auto'`` (CUDA where there is some, else the CPU),
            ``'cpu'``, ``'cuda'`` or ``'cuda:N'``.
        env: Place among the processes of a launched run; each of them takes
            the CUDA device of its local rank. None for a single process.

    Returns:
        ``cpu``, or ``cuda`` with an index.

    Raises:
        ValueError: If the text is none of these, CUDA or the index is not
            there, an index is given to a run of several processes, or there
            are more processes than devices.

    Examples:
        >>> resolve_device('cpu')
        device(type='cpu')
    """
    match = _SYNTAX.fullmatch(device) if isinstance(device, str) else None
    if match is None:
        raise ValueError(
            f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}"
        )
    available = torch.cuda.is_available()
    if device == 'cpu' or (device == 'auto' and not available):
        return torch.device('cpu')
    if not available:
        why = 'PyTorch sees no CUDA device (see CUDA_VISIBLE_DEVICES)'
        if torch.version.cuda is None:
            why = f'this PyTorch ({torch.__version__}) is built without CUDA'
        raise ValueError(
            f'device must exist, got {device!r}, but {why}; use '
            '--device cpu or --device auto'
        )
    index, count = match['index'], torch.cuda.device_count()
    if env is not None:
        if index is not None:
            raise ValueError(
                'device must have no index when a launcher starts the '
                f'processes, got {device!r}; use --device cuda, and '
                'CUDA_VISIBLE_DEVICES to choose among devices'
            )
        # One device for each process, or the only one that this one sees.
        if env.own_device and count == 1:
            return torch.device('cuda', 0)
        needed = max(env.local_world_size or 0, env.local_rank + 1)
        if needed > count:
            raise ValueError(
                'the number of processes on a machine must not exceed its '
                f'devices, got {needed} processes and {count} CUDA device(s); '
                'start fewer processes, or put them on the CPU with --device '
                'cpu'
            )
        return torch.device('cuda', env.local_rank)
    if index is not None and int(index) >= count:
        raise ValueError(
            f'device must exist, got {device!r}, but there are only {count} '
            f'CUDA device(s), cuda:0 to cuda:{count - 1}'
        )
    return torch.device('cuda', int(index or 0))


def pin_device(device: torch.device) -> None:
    """Make MMEngine and PyTorch use a device from now on.

    MMEngine takes the first kind of accelerator that it finds wherever it
    moves something: the model, a checkpoint, autocast. There is no argument
    for it, only the module variable that :func:`mmengine.device.get_device`
    returns, so this sets it, for the whole process.

    Args:
        device: What :func:`resolve_device` returned.
    """
    if device.type == 'cuda':
        torch.cuda.set_device(device)
    mmengine.device.utils.DEVICE = device.type


# Memory of a CPU -------------------------------------------------------------

# A block of more than 32 MiB, glibc gives back to the system when it is freed,
# and takes new pages, which the system fills with zeros one after the other,
# for the next. Of CO-DINO's training step at 800 x 1333 that was a fifth.

# The user's own settings of glibc, or another allocator.
_SETTINGS = (
    'MALLOC_MMAP_MAX_',
    'MALLOC_MMAP_THRESHOLD_',
    'MALLOC_TOP_PAD_',
    'MALLOC_TRIM_THRESHOLD_',
)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_NEVER = -1
# Bytes that the heap grows by, at least.
_GROWTH = 64 << 20


def keep_freed_memory(environ: Mapping[str, str] | None = None) -> bool:
    """Let this process keep the memory that is freed in it.

    It stays free for what is allocated next, also by PyTorch, and goes back
    to the system when the process ends. This holds for processes that are
    forked afterwards, too.

    Args:
        environ: Environment variables, those of this process by default. With
            settings of glibc's allocator among them (such as
            ``MALLOC_MMAP_MAX_=65536``, its default, or ``GLIBC_TUNABLES``
            that name ``glibc.malloc``), or an allocator in ``LD_PRELOAD``,
            nothing is changed.

    Returns:
        Whether it will be kept; False without glibc, too.

    Source:
        mallopt(3) of Linux: ``M_MMAP_MAX``, ``M_TRIM_THRESHOLD`` and
        ``M_TOP_PAD``.
    """
    environ = os.environ if environ is None else environ
    if (
        platform.libc_ver()[0] != 'glibc'
        or any(name in environ for name in _SETTINGS)
        or 'glibc.malloc' in environ.get('GLIBC_TUNABLES', '')
        or 'malloc' in environ.get('LD_PRELOAD', '')
    ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    done = [
        mallopt(parameter, value)
        for parameter, value in (
            (_M_MMAP_MAX, 0),
            (_M_TRIM_THRESHOLD, _NEVER),
            (_M_TOP_PAD, _GROWTH),
        )
    ]
    return all(done)
