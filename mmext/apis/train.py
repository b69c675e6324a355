"""Train the model of a config."""

from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config

from ._runs import build_runner, prepare_config, process_group

__all__ = ['prepare_training', 'run_training']


def _enable_amp(cfg: Config) -> None:
    wrapper = cfg.get('optim_wrapper')
    if not isinstance(wrapper, Mapping):
        raise ValueError(
            '--amp needs optim_wrapper in the config, got '
            f'{wrapper!r}; is this the config of a training?'
        )
    kind = wrapper.get('type', 'OptimWrapper')
    if kind not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise ValueError(
            "--amp needs optim_wrapper.type 'OptimWrapper' or "
            f"'AmpOptimWrapper', got {kind!r}; set up mixed precision in the "
            'config instead'
        )
    wrapper['type'] = 'AmpOptimWrapper'
    wrapper.setdefault('loss_scale', 'dynamic')


def _enable_auto_scale_lr(cfg: Config) -> None:
    setting = cfg.get('auto_scale_lr')
    base = None
    if isinstance(setting, Mapping):
        base = setting.get('base_batch_size')
    if not isinstance(base, int) or base < 1:
        raise ValueError(
            '--auto-scale-lr needs auto_scale_lr.base_batch_size, the number '
            'of images per step that the learning rate of the config is '
            f'for, got auto_scale_lr={setting!r}; add auto_scale_lr='
            'dict(base_batch_size=16), with your number, to the config'
        )
    setting['enable'] = True


def prepare_training(
    config: Config | str | Path,
    *,
    work_dir: str | None = None,
    resume: str | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    cfg_options: Mapping | None = None,
    launcher: str = 'none',
    device: str | None = None,
) -> Config:
    """Read and check the config of a training.

    Args:
        config: The config, or its file.
        work_dir: Folder of the run; by default that of the config, else
            ``work_dirs`` and the name of the config.
        resume: A checkpoint to go on from; ``'auto'`` for the newest
            complete one of the work dir, or the beginning if there is none;
            None for what the config says.
        amp: Train in mixed precision: float16 with scaled loss on GPUs,
            bfloat16 on CPUs, unless the config names a dtype.
        auto_scale_lr: Scale the learning rate by the number of images per
            step over ``auto_scale_lr.base_batch_size`` of the config.
        cfg_options: Settings to put over the config.
        launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
        device: ``'auto'``, ``'cpu'``, ``'cuda'`` or ``'cuda:N'``; by default
            that of the config.

    Returns:
        The config for :func:`run_training`.

    Raises:
        FileNotFoundError: If the config, the data or the checkpoint to
            resume from do not exist.
        ValueError: If ``--amp`` or ``--auto-scale-lr`` does not suit the
            config, the device does not exist, or the launcher did not set
            what it has to.
    """
    cfg = prepare_config(
        config,
        splits=('train', 'val'),
        work_dir=work_dir,
        cfg_options=cfg_options,
        launcher=launcher,
        device=device,
    )
    if amp:
        _enable_amp(cfg)
    if auto_scale_lr:
        _enable_auto_scale_lr(cfg)
    if resume == 'auto':
        cfg.resume = 'auto'
    elif resume is not None:
        if '://' not in resume and not Path(resume).is_file():
            raise FileNotFoundError(
                'resume must be an existing checkpoint, got '
                f'{resume!r}; --resume alone takes the newest one of the '
                'work dir'
            )
        cfg.resume = True
        cfg.load_from = resume
    return cfg


def run_training(cfg: Config) -> None:
    """Train. Checkpoints and logs are in ``cfg.work_dir``.

    Args:
        cfg: What :func:`prepare_training` returned.

    Raises:
        GracefulExit: When a signal ended the training and its state is
            saved. It is a ``SystemExit`` with code 128 plus the signal.
    """
    with process_group():
        build_runner(cfg).train()
