"""Environment variables and folders that a training would stumble over."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import torch

from ....utils.launcher_env import read_launcher_env
from ...findings import Finding, Severity
from .registry import ENV, new_finding
from .subject import Subject, as_mapping

_DRIVER = Path('/dev/nvidiactl')
_RANKS = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')


@ENV.rule(
    'ENV001',
    symptoms=('expected, but not set',),
    title='variables of the launcher do not fit together',
    severity=Severity.ERROR,
    remedy='start with torchrun, or unset RANK, LOCAL_RANK and WORLD_SIZE',
)
def inconsistent_launcher(subject: Subject) -> Iterator[Finding]:
    """What torchrun sets together, and in part."""
    environ = subject.environ
    there = [name for name in _RANKS if environ.get(name)]
    # MMEngine's tools set LOCAL_RANK alone.
    if not there or there == ['LOCAL_RANK']:
        return
    given = dict(environ)
    if environ.get('WORLD_SIZE') == '1':
        given.setdefault('MASTER_ADDR', 'localhost')
    try:
        env = read_launcher_env('pytorch', given)
    except ValueError as error:
        yield new_finding(str(error), names=tuple(there))
        return
    local = env.local_world_size
    if local is not None and not env.local_rank < local <= env.world_size:
        yield new_finding(
            'LOCAL_RANK must be below LOCAL_WORLD_SIZE, and that not above '
            f'WORLD_SIZE, got {env.local_rank}, {local} and '
            f'{env.world_size}',
            names=('LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'WORLD_SIZE'),
        )


@ENV.rule(
    'ENV002',
    symptoms=(
        'The server socket has failed to listen on any local network address',
    ),
    title='the port of the process group is in use',
    severity=Severity.WARNING,
    remedy='set MASTER_PORT to a free port',
)
def busy_port(subject: Subject) -> Iterator[Finding]:
    """``MASTER_PORT`` on this machine; inside of a launch it is in use."""
    text = subject.environ.get('MASTER_PORT', '')
    if not text or subject.environ.get('RANK'):
        return
    if not text.isdigit() or not 0 < int(text) < 2**16:
        yield new_finding(
            f'MASTER_PORT must be a number from 1 to 65535, got {text!r}',
            names=('MASTER_PORT',),
            severity=Severity.ERROR,
        )
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(('', int(text)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                yield new_finding(
                    f'MASTER_PORT is {text}, on which another program listens',
                    names=('MASTER_PORT',),
                )


@ENV.rule(
    'ENV003',
    title='CUDA_VISIBLE_DEVICES does not fit',
    severity=Severity.WARNING,
    remedy='name as many different devices as there are processes',
)
def visible_devices(subject: Subject) -> Iterator[Finding]:
    """None, twice the same, or fewer than processes."""
    text = subject.environ.get('CUDA_VISIBLE_DEVICES')
    if text is None:
        return
    devices = [device.strip() for device in text.split(',') if device.strip()]
    names = ('CUDA_VISIBLE_DEVICES',)
    if len(set(devices)) < len(devices):
        yield new_finding(
            f'CUDA_VISIBLE_DEVICES is {text!r}, with a device twice: CUDA '
            'shows none at all',
            names=names,
        )
    elif '-1' in devices[:-1]:
        shown = devices[: devices.index('-1')]
        yield new_finding(
            f'CUDA_VISIBLE_DEVICES is {text!r}: only {shown} are seen, '
            'those before -1',
            names=names,
        )
    wanted = subject.environ.get('LOCAL_WORLD_SIZE', '')
    if devices and wanted.isdigit() and len(devices) < int(wanted):
        yield new_finding(
            f'{wanted} processes of this machine have {len(devices)} '
            f'devices, CUDA_VISIBLE_DEVICES={text!r}',
            names=('CUDA_VISIBLE_DEVICES', 'LOCAL_WORLD_SIZE'),
        )


@ENV.rule(
    'ENV004',
    title='TORCH_DISTRIBUTED_DEBUG=DETAIL ends processes of gloo',
    severity=Severity.WARNING,
    remedy='set TORCH_DISTRIBUTED_DEBUG=INFO: it names parameters, too',
)
def detail_with_gloo(subject: Subject) -> Iterator[Finding]:
    """A segmentation fault of PyTorch 2.13 and 2.15."""
    detail = subject.environ.get('TORCH_DISTRIBUTED_DEBUG', '').upper()
    env_cfg = as_mapping(subject.top.get('env_cfg'))
    backend = as_mapping(env_cfg.get('dist_cfg')).get('backend')
    # The tool hides GPUs from itself, so torch alone cannot tell. Without
    # one, mmext's runner takes the backend that works.
    gpu = torch.cuda.is_available() or _DRIVER.exists()
    if detail == 'DETAIL' and (backend == 'gloo' or not gpu):
        yield new_finding(
            'with TORCH_DISTRIBUTED_DEBUG=DETAIL and the backend gloo, '
            'processes die of a segmentation fault',
            names=('TORCH_DISTRIBUTED_DEBUG',),
        )


@ENV.rule(
    'ENV006',
    title='nothing can be written to the work dir',
    severity=Severity.ERROR,
    remedy='set work_dir to a folder that you may write to',
)
def work_dir(subject: Subject) -> Iterator[Finding]:
    """Folders of others, and files in the place of a folder."""
    text = subject.top.get('work_dir')
    if not isinstance(text, str) or not text:
        return
    folder = Path(text).expanduser().absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    why = '' if folder.is_dir() else 'is a file'
    if not why and not os.access(folder, os.W_OK | os.X_OK):
        why = 'cannot be written to'
    if why:
        message = f'work_dir is {text}, and {folder} {why}'
        yield new_finding(message, path=('work_dir',))
