"""Arguments that several tools share. Loads no torch."""

import argparse
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from mmengine.config import Config, DictAction

__all__ = ['add_run_arguments', 'find_device', 'hide_gpus', 'report_errors']

# As mmext.engine.launcher has them, which is not imported here to stay light.
_LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a training and a test have in common.

    Args:
        parser: It is changed.
    """
    add = parser.add_argument
    add('config', help='config file')
    add(
        '--work-dir',
        metavar='DIR',
        help='folder for checkpoints and logs (default: work_dir of the '
        'config, else work_dirs/NAME_OF_THE_CONFIG)',
    )
    add(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='settings to put over the config, such as data_root=FOLDER or '
        'train_dataloader.batch_size=4; quote lists: key="[1,2]"',
    )
    add(
        '--launcher',
        choices=_LAUNCHERS,
        default='none',
        help='what starts the processes of a run with several of them '
        '(default: %(default)s)',
    )
    add(
        '--device',
        metavar='DEVICE',
        help='auto (GPU where there is one, else CPU), cpu, cuda or cuda:N '
        '(default: device of the config, else auto)',
    )
    # Older launchers pass it; the environment says the same.
    add(
        '--local_rank',
        '--local-rank',
        type=int,
        default=0,
        help=argparse.SUPPRESS,
    )


def find_device(args: argparse.Namespace) -> str | None:
    """The device that a run is going to ask for, as far as it is known.

    Args:
        args: Of a parser with :func:`add_run_arguments`.

    Returns:
        That of ``--device``, of ``--cfg-options`` or of the config, in this
        order; None if no place names one, or there is no such config.
    """
    device = args.device or (args.cfg_options or {}).get('device')
    if device is None and Path(args.config).is_file():
        cfg = Config.fromfile(args.config, import_custom_modules=False)
        device = cfg.get('device')
    return device


def hide_gpus(
    device: str | None, environ: MutableMapping[str, str] | None = None
) -> None:
    """Make sure that a run on the CPU leaves the GPUs of the machine alone.

    MMEngine asks for a GPU's memory and its name wherever there is one. To be
    called before torch is loaded.

    Args:
        device: What :func:`find_device` says. Only ``'cpu'`` hides GPUs.
        environ: The environment to change, by default ``os.environ``.

    Examples:
        >>> environ = {}
        >>> hide_gpus('cuda', environ), hide_gpus('cpu', environ), environ
        (None, None, {'CUDA_VISIBLE_DEVICES': '-1'})
    """
    if device == 'cpu':
        environ = os.environ if environ is None else environ
        environ['CUDA_VISIBLE_DEVICES'] = '-1'


def report_errors(
    parser: argparse.ArgumentParser, function: Callable[..., Any], *args: Any
) -> Any:
    """Call a function; what is wrong with its input ends the tool.

    For the part of a tool that reads and checks what the user gave, where
    the message says it all and a traceback would bury it.

    Args:
        parser: Of the tool. Prints the message; the exit code is 2.
        function: To be called.
        args: Its arguments.

    Returns:
        What the function returned.

    Raises:
        SystemExit: If the function raised a ValueError, TypeError,
            ImportError, KeyError or OSError.
    """
    try:
        return function(*args)
    except (ImportError, KeyError, OSError, TypeError, ValueError) as error:
        parser.exit(2, f'{parser.prog}: error: {error}\n')
