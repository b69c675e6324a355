"""Evaluate a checkpoint on the test data of a config."""

from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config
from mmengine.evaluator import DumpResults

from ._runs import build_runner, prepare_config, process_group

__all__ = ['prepare_test', 'run_test']

_DUMP_SUFFIXES = ('.pkl', '.pickle')


def prepare_test(
    config: Config | str | Path,
    checkpoint: str,
    *,
    work_dir: str | None = None,
    out: str | None = None,
    cfg_options: Mapping | None = None,
    launcher: str = 'none',
    device: str | None = None,
) -> Config:
    """Read and check the config of a test.

    Args:
        config: The config, or its file.
        checkpoint: Weights to test.
        work_dir: Folder of the logs; by default that of the config, else
            ``work_dirs`` and the name of the config.
        out: File to write all predictions into, ``*.pkl``.
        cfg_options: Settings to put over the config.
        launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
        device: ``'auto'``, ``'cpu'``, ``'cuda'`` or ``'cuda:N'``; by default
            that of the config.

    Returns:
        The config for :func:`run_test`.

    Raises:
        FileNotFoundError: If the config, the data or the checkpoint do not
            exist.
        ValueError: If ``out`` has another suffix, the config has nothing to
            test, the device does not exist, or the launcher did not set
            what it has to.
    """
    if out is not None and not out.endswith(_DUMP_SUFFIXES):
        raise ValueError(f'out must end in .pkl, got {out!r}')
    if '://' not in checkpoint and not Path(checkpoint).is_file():
        raise FileNotFoundError(
            f'checkpoint must be an existing file, got {checkpoint!r}'
        )
    cfg = prepare_config(
        config,
        splits=('test',),
        work_dir=work_dir,
        cfg_options=cfg_options,
        launcher=launcher,
        device=device,
    )
    if cfg.get('test_dataloader') is None:
        raise ValueError(
            'config must have test_dataloader, test_cfg and test_evaluator, '
            f'got none in {cfg.filename}'
        )
    cfg.load_from = checkpoint
    cfg.resume = False
    return cfg


def run_test(cfg: Config, *, out: str | None = None) -> dict:
    """Evaluate.

    Args:
        cfg: What :func:`prepare_test` returned.
        out: File to write all predictions into, as a pickled list with one
            entry per image.

    Returns:
        Name of metric -> value.

    Raises:
        ValueError: If the checkpoint is of another model.
    """
    with process_group():
        runner = build_runner(cfg)
        if out is not None:
            runner.test_evaluator.metrics.append(DumpResults(out))
        return runner.test()
