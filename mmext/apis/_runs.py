"""What a training and a test do alike: from a config file to a runner."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import barrier
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from ..datasets import check_data_paths
from ..engine import GracefulExit, close_process_group
from ..engine.device import resolve_device
from ..engine.launcher import read_launcher_env
from ..preflight.misplaced_keys import check_misplaced_keys
from .detector import read_config

__all__ = ['build_runner', 'prepare_config', 'process_group']

_DEFAULT_RUNNER = 'mmext.PortableRunner'


def prepare_config(
    config: Config | str | Path,
    *,
    splits: Sequence[str],
    work_dir: str | None = None,
    cfg_options: Mapping | None = None,
    launcher: str = 'none',
    device: str | None = None,
) -> Config:
    """Read the config of a run and check what can be checked early.

    Args:
        config: The config, or its file.
        splits: Data that the run needs, of ``'train'``, ``'val'``, ``'test'``.
        work_dir: Folder of the run; by default that of the config, else
            ``work_dirs`` and the name of the config.
        cfg_options: Settings to put over the config.
        launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
        device: Device to use; by default that of the config.

    Returns:
        A config that a runner can be built from.

    Raises:
        FileNotFoundError: If the config or the data do not exist.
        MisplacedKeyError: If a setting is where nothing reads it.
        ValueError: If the device does not exist, the launcher did not set
            what it has to, or there are more processes than devices.
    """
    cfg = read_config(config, cfg_options=cfg_options)
    check_misplaced_keys(cfg)
    cfg.launcher = launcher
    if device is not None:
        cfg.device = device
    env = None
    if launcher != 'none':
        env = read_launcher_env(launcher, os.environ)
    resolve_device(cfg.get('device') or 'auto', env)
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        name = Path(cfg.filename or 'run').stem
        cfg.work_dir = str(Path('work_dirs', name))
    check_data_paths(cfg, splits)
    return cfg


def build_runner(cfg: Config) -> Runner:
    """Build the runner that a config names, by default mmext's.

    Args:
        cfg: The config.

    Returns:
        The runner.
    """
    cfg = cfg.copy()
    cfg.setdefault('runner_type', _DEFAULT_RUNNER)
    return RUNNERS.build(cfg)


@contextmanager
def process_group() -> Iterator[None]:
    """End the process group that is started inside, however that ends.

    A process that fails does not wait for the others, which may be waiting
    for it; its launcher ends them. One that succeeds waits until all have,
    since the first one may serve the others.
    """
    failed = True
    try:
        yield
        barrier()
        failed = False
    except GracefulExit:
        failed = False
        raise
    finally:
        close_process_group(failed=failed)
