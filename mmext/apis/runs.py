"""Train and test the model of a config: prepare the run, then run it."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import barrier, is_main_process
from mmengine.evaluator import DumpResults
from mmengine.fileio import dump
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from rich.console import Console

from ..checks.config import (
    check_data_paths,
    check_misplaced_keys,
    key_location,
    read_config,
    unknown_loader_keys,
)
from ..engine import (
    GracefulExit,
    close_process_group,
    read_last_checkpoint,
    resolve_device,
)
from ..engine.distributed import current_watch
from ..utils.files import atomic_path, check_outputs
from ..utils.launcher_env import let_rank_0_print, read_launcher_env
from ..utils.printing import printable
from ..utils.safe_load import careful_readers, is_pretrained
from ..utils.tensors import has_bfloat16
from .views import wrap_test


def prepare_config(
    config: Config | str | Path,
    *,
    splits: Sequence[str],
    work_dir: str | None = None,
    cfg_options: Mapping | None = None,
    launcher: str = 'none',
    device: str | None = None,
    trust_checkpoint: bool = False,
    out: str | None = None,
    report: str | None = None,
) -> Config:
    """Read the config of a run and check what can be checked early.

    Args:
        config: The config, or its file.
        splits: Those of ``'train'``, ``'val'`` and ``'test'`` whose data the
            run needs.
        work_dir: Folder of the run; by default that of the config, else
            ``work_dirs`` and the name of the config.
        cfg_options: Settings to put over the config.
        launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
        device: ``'auto'``, ``'cpu'``, ``'cuda'`` or ``'cuda:N'``; by default
            that of the config.
        trust_checkpoint: Let checkpoints that are named, and other files
            that the config names, run code when they are read; the same as
            ``trust_checkpoint = True`` in the config.
        out: File that is going to be written.
        report: Folder that is going to be written.
    """
    cfg = read_config(config, cfg_options=cfg_options)
    check_misplaced_keys(cfg)
    cfg.launcher = launcher
    if device is not None:
        cfg.device = device
    if trust_checkpoint:
        cfg.trust_checkpoint = True
    _device(cfg)
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        name = Path(cfg.filename or 'run').stem
        cfg.work_dir = str(Path('work_dirs', name))
    check_outputs(
        {'--out': out},
        folders={'work_dir': cfg.work_dir, '--report': report},
    )
    for split in splits:
        name = f'{split}_dataloader'
        loader = cfg.get(name)
        if not isinstance(loader, Mapping):
            continue
        for key, near in unknown_loader_keys(loader):
            file, line = key_location(cfg, f'{name}.{key}')
            location = f' ({file}:{line})' if line else ''
            raise TypeError(
                f'{name}.{key}={loader[key]!r}{location} is no argument of '
                'data loaders; '
                + (f'rename it to {near}, or ' if near else '')
                + 'remove it'
            )
    check_data_paths(cfg, splits)
    return cfg


def _device(cfg: Config) -> torch.device:
    """The device of this process of a run."""
    env = None
    if cfg.launcher != 'none':
        env = read_launcher_env(cfg.launcher, os.environ)
    return resolve_device(cfg.get('device') or 'auto', env)


def build_runner(cfg: Config) -> Runner:
    """Build the runner that a config names, by default mmext's."""
    cfg = cfg.copy()
    cfg.setdefault('runner_type', 'mmext.PortableRunner')
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
    except BaseException as error:
        current_watch().note_failure(error)
        raise
    finally:
        close_process_group(failed=failed)


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
    if has_bfloat16(_device(cfg)):
        wrapper.setdefault('dtype', 'bfloat16')
    if wrapper.get('dtype') in ('bfloat16', torch.bfloat16):
        # It has the range of float32: nothing overflows, or vanishes.
        wrapper.setdefault('loss_scale', {'enabled': False})
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
    resume: str | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    **options: Any,
) -> Config:
    """Read and check the config of a training.

    Args:
        config: The config, or its file.
        resume: A checkpoint to go on from; ``'auto'`` for the newest
            complete one of the work dir, or the beginning if there is none;
            None for what the config says.
        amp: Train in mixed precision: bfloat16 on CPUs and on GPUs that
            compute in it, float16 with scaled loss on older ones, unless
            the config names a dtype.
        auto_scale_lr: Scale the learning rate by the number of images per
            step over ``auto_scale_lr.base_batch_size`` of the config.
        **options: ``work_dir``, ``cfg_options``, ``launcher``, ``device`` and
            ``trust_checkpoint`` of :func:`~mmext.apis.runs.prepare_config`.

    Returns:
        The config for :func:`run_training`.

    Raises:
        FileNotFoundError: If the config, the data or the checkpoint to
            resume from do not exist.
        OSError: If the work dir cannot be written.
        ValueError: If ``--amp`` or ``--auto-scale-lr`` does not suit the
            config, the device does not exist, or the launcher did not set
            what it has to.
    """
    cfg = prepare_config(config, splits=('train', 'val'), **options)
    if amp:
        _enable_amp(cfg)
    if auto_scale_lr:
        _enable_auto_scale_lr(cfg)
    if resume == 'auto':
        cfg.resume = 'auto'
    elif resume is not None:
        if is_pretrained(resume):
            raise ValueError(
                'resume must be a checkpoint of a training, got the folder '
                f'of a shared model, {resume!r}, which has weights only; use '
                f'--cfg-options load_from={resume}'
            )
        if '://' not in resume and not Path(resume).is_file():
            raise FileNotFoundError(
                'resume must be an existing checkpoint, got '
                f'{resume!r}; --resume alone takes the newest one of the '
                'work dir'
            )
        cfg.resume = True
        cfg.load_from = resume
    return cfg


def _rank_and_world(cfg: Config) -> tuple[int, int]:
    """Rank of this process, and how many train."""
    if cfg.launcher == 'none':
        return 0, 1
    env = read_launcher_env(cfg.launcher, os.environ)
    return env.rank, env.world_size


def has_errors(cfg: Config) -> bool:
    """Print the errors that a config shows before anything is built.

    Returns whether there are some. Each process finds that out for itself, so
    that none waits for one that does not train.
    """
    # Not at the top: tests and libraries do without.
    from ..checks.preflight import check_training

    rank, world = _rank_and_world(cfg)
    text = StringIO()
    console = Console(file=text, width=100_000, highlight=False)
    good = check_training(cfg, world=world, console=console if rank else None)
    if not good and rank:
        let_rank_0_print()
        sys.stderr.write(printable(text.getvalue()))
    return not good


def trained_checkpoint(cfg: Config, since: float = 0.0) -> Path | None:
    """The best checkpoint of a training, or its last one.

    None in all processes but the first. ``since`` is when it began: the best
    one may be older if it was resumed.
    """
    folder = Path(cfg.work_dir)
    if _rank_and_world(cfg)[0]:
        return None
    best = [path for path in folder.glob('best_*.pth') if path.is_file()]
    times = {path.stat().st_mtime: path for path in best}
    newest = max(times, default=0.0)
    if newest and (cfg.get('resume') or newest >= since):
        return times[newest]
    last, _ = read_last_checkpoint(folder)
    return folder / Path(last).name if last else None


def run_training(cfg: Config) -> None:
    """Train. Checkpoints and logs are in ``cfg.work_dir``.

    Args:
        cfg: What :func:`prepare_training` returned.

    Raises:
        GracefulExit: When a signal ended the training and its state is
            saved. It is a ``SystemExit`` with code 128 plus the signal.
        UnusableCheckpointError: If the checkpoint to go on from, or to load,
            cannot be used.
        WorkDirError: If the work dir cannot be used, or another training
            writes into it.
    """
    # Files run no code, also with a runner that is not mmext's.
    careful = careful_readers(cfg.get('trust_checkpoint') is True)
    with process_group(), careful:
        build_runner(cfg).train()


def prepare_test(
    config: Config | str | Path,
    checkpoint: str,
    *,
    out: str | None = None,
    report: str | None = None,
    tta: bool = False,
    tile: int | None = None,
    **options: Any,
) -> Config:
    """Read and check the config of a test.

    Args:
        config: The config, or its file.
        checkpoint: Weights to test: a file, or a folder of
            :func:`mmext.save_pretrained`.
        out: File to write all predictions into, ``*.pkl``.
        report: Folder to write a report into.
        tta: Test with flips and scales, see
            :func:`~mmext.apis.views.wrap_test`.
        tile: Test with tiles of so many pixels, too; see there.
        **options: As of :func:`prepare_training`.

    Returns:
        The config for :func:`run_test`.

    Raises:
        FileNotFoundError: If the config, the data or the checkpoint do not
            exist.
        OSError: If ``out``, ``report`` or the work dir cannot be written.
        ValueError: If ``out`` has another suffix, the config has nothing to
            test, or nothing that ``tta`` or ``tile`` suits, the device does
            not exist, or the launcher did not set what it has to.
    """
    if out is not None and not out.endswith(('.pkl', '.pickle')):
        raise ValueError(f'out must end in .pkl, got {out!r}')
    there = Path(checkpoint).is_file() or is_pretrained(checkpoint)
    if '://' not in checkpoint and not there:
        raise FileNotFoundError(
            f'checkpoint must be an existing file, got {checkpoint!r}'
        )
    cfg = prepare_config(
        config, splits=('test',), out=out, report=report, **options
    )
    if cfg.get('test_dataloader') is None:
        raise ValueError(
            'config must have test_dataloader, test_cfg and test_evaluator, '
            f'got none in {cfg.filename}'
        )
    if tta or tile is not None:
        wrap_test(cfg, tta=tta, tile=tile)
    cfg.load_from = checkpoint
    cfg.resume = False
    return cfg


class _DumpResults(DumpResults):
    """Writes the file whole or not at all."""

    def compute_metrics(self, results: list) -> dict:
        with atomic_path(self.out_file_path) as temporary:
            dump(results, str(temporary))
        print_log(f'predictions are in {self.out_file_path}', 'current')
        return {}


def run_test(
    cfg: Config,
    *,
    out: str | None = None,
    report: str | None = None,
    score_thr: float = 0.3,
) -> dict:
    """Evaluate.

    Args:
        cfg: What :func:`prepare_test` returned.
        out: File to write all predictions into, as a pickled list with one
            entry per image.
        report: Folder to write ``report.json`` and ``report.html`` into, see
            :func:`~mmext.apis.write_report`.
        score_thr: Of the report: boxes of a lower score count as not found.

    Returns:
        Name of metric -> value.

    Raises:
        UnusableCheckpointError: If the checkpoint is damaged or of another
            model.
        ValueError: If a report cannot be made of what it predicts.
    """
    careful = careful_readers(cfg.get('trust_checkpoint') is True)
    with process_group(), careful:
        runner = build_runner(cfg)
        own = runner.test_evaluator.metrics
        evaluators = list(own)
        if out is not None:
            own.append(_DumpResults(out))
        if report is None:
            return runner.test()
        # Not at the top: most tests need no report.
        from .report.metric import ReportMetric, write_report

        ignored = [getattr(item, 'ignore_index', None) for item in evaluators]
        metric = ReportMetric(
            next((value for value in ignored if value is not None), 255)
        )
        metric.dataset_meta = runner.test_loop.dataloader.dataset.metainfo
        own.append(metric)
        metrics = runner.test()
        if is_main_process():
            files = write_report(
                report,
                metric,
                runner.test_loop.dataloader.dataset,
                metrics=metrics,
                evaluators=evaluators,
                score_thr=score_thr,
                about={
                    'config': str(cfg.filename or 'of the checkpoint'),
                    'checkpoint': str(cfg.load_from),
                },
            )
            print_log(f'the report is in {files[1]}', 'current')
        return metrics
