"""Start and end the process group, on CUDA devices and on the CPU alike."""

import os
import socket
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from .launcher import LauncherEnv, export_launcher_env

__all__ = [
    'DEFAULT_TIMEOUT_S',
    'choose_backend',
    'close_process_group',
    'default_store',
    'init_process_group',
    'loopback_interface',
]

# A rank that fails ends its process, and the launcher ends the others. This
# is for the case that a rank hangs; it must be longer than the evaluation,
# during which all ranks wait for rank 0. As long as NCCL's own default.
DEFAULT_TIMEOUT_S = 600
_CLOSE_TIMEOUT_S = 10
_DIST_KEYS = ('backend', 'timeout', 'port', 'init_backend')


def choose_backend(device: torch.device, backend: str | None = None) -> str:
    """Backend of collectives for a device.

    Args:
        device: Where the model is.
        backend: What the config asks for. ``'nccl'``, which stands in
            practically every config, gives way on the CPU. None to choose.

    Examples:
        >>> choose_backend(torch.device('cpu'), 'nccl')
        'gloo'
    """
    if device.type == 'cpu':
        return 'gloo' if backend in (None, 'nccl') else backend
    return backend or 'nccl'


def loopback_interface() -> str | None:
    """Name of the network interface to oneself, None if there is none."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ('lo', 'lo0') if name in names), None)


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
    export_launcher_env(env, os.environ)
    if options.get('port') and 'TORCHELASTIC_RUN_ID' not in os.environ:
        os.environ['MASTER_PORT'] = str(options['port'])
    backend = choose_backend(device, options.get('backend'))
    if 'gloo' in backend and env.local_world_size == env.world_size:
        # Gloo looks up the machine's own name, which a laptop or a container
        # often cannot resolve. Among processes of one machine it need not.
        interface = loopback_interface()
        if interface:
            os.environ.setdefault('GLOO_SOCKET_IFNAME', interface)
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=timeout),
        rank=env.rank,
        world_size=env.world_size,
    )


def default_store() -> dist.Store:
    """Key-value store of the default process group."""
    return dist.distributed_c10d._get_default_store()


def close_process_group(*, failed: bool = False) -> None:
    """Leave the process group, if there is one.

    Args:
        failed: This process ends with an error. The others may be waiting
            for it in a collective, in which case leaving can block, so it is
            not waited for longer than ten seconds.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    if not failed:
        dist.destroy_process_group()
        return
    thread = threading.Thread(
        target=dist.destroy_process_group, name='close', daemon=True
    )
    thread.start()
    thread.join(_CLOSE_TIMEOUT_S)
