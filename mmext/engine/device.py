"""Choose the device of this process, and hold MMEngine to it."""

import re

import mmengine.device.utils
import torch

from .launcher import LauncherEnv

__all__ = ['pin_device', 'resolve_device']

_SYNTAX = re.compile(r'auto|cpu|cuda(:(?P<index>\d+))?')


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f'this PyTorch ({torch.__version__}) is built without CUDA'
    return 'PyTorch sees no CUDA device (see CUDA_VISIBLE_DEVICES)'


def _device_of_rank(env: LauncherEnv) -> int:
    """Index of the device of a launched process, one device each."""
    count = torch.cuda.device_count()
    if env.own_device and count == 1:
        return 0
    needed = max(env.local_world_size or 0, env.local_rank + 1)
    if needed > count:
        raise ValueError(
            'the number of processes on a machine must not exceed its '
            f'devices, got {needed} processes and {count} CUDA device(s); '
            'start fewer processes, or put them on the CPU with --device cpu'
        )
    return env.local_rank


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
        raise ValueError(
            f'device must exist, got {device!r}, but {_why_no_cuda()}; use '
            '--device cpu or --device auto'
        )
    index = match['index']
    if env is not None:
        if index is not None:
            raise ValueError(
                'device must have no index when a launcher starts the '
                f'processes, got {device!r}; use --device cuda, and '
                'CUDA_VISIBLE_DEVICES to choose among devices'
            )
        return torch.device('cuda', _device_of_rank(env))
    count = torch.cuda.device_count()
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
