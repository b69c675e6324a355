"""A runner that does the same on CUDA devices and on the CPU."""

import atexit
import inspect
import multiprocessing.util
import os
import re
import signal
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import is_distributed, is_main_process, master_only
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MMLogger
from mmengine.model import (
    convert_sync_batchnorm,
    is_model_wrapper,
    revert_sync_batchnorm,
)
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS as ALL_HOOKS
from mmengine.registry import LOOPS as ALL_LOOPS
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import (
    BaseLoop,
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    LogProcessor,
    Runner,
)
from torch import nn
from torch.utils.data import DataLoader

from ..checks.config import check_misplaced_keys
from ..checks.ddp import loose_parameters
from ..ops import choose_ops_backend, log_backend
from ..registry import RUNNERS
from ..utils.files import atomic_path
from ..utils.launcher_env import read_launcher_env
from ..utils.safe_load import careful_readers
from ..utils.tensors import has_bfloat16
from ..utils.training import rate_factor
from .checkpoint import CheckpointingRunner, work_dir_lock
from .checkpoint.work_dir import LAST_CHECKPOINT, checkpoint_dir
from .distributed import (
    CHECKPOINT,
    current_watch,
    keep_parameter_names,
    model_wrapper_config,
    unwrap_model,
    watched_run,
)
from .hooks.activation_checkpoint import ActivationCheckpointHook
from .hooks.checkpoint import AtomicCheckpointHook
from .hooks.graceful_stop import GracefulStopHook
from .hooks.label_range import EvaluationLabelHook
from .hooks.loss_balancer import LossBalancerHook
from .hooks.progress import ProgressHook, RankWatchHook, shorten_console
from .launch import (
    DEFAULT_TIMEOUT_S,
    choose_backend,
    init_process_group,
    keep_freed_memory,
    pin_device,
    resolve_device,
    watch_ranks,
)
from .loops import ResumableEpochBasedTrainLoop, ResumableIterBasedTrainLoop
from .optim.cpu_amp import cpu_amp_cfg
from .sample_errors import name_failing_samples


@atexit.register
def end_workers() -> None:
    """End what data loading processes are left when Python exits.

    Python sends them one SIGTERM at that point, which they ignore, and then
    waits for them without a limit. Exit functions run in reverse order, so
    this one, registered after the one of ``multiprocessing``, comes first.
    """
    # PyTorch's handler would call the end of a worker an error.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


def start_worker(
    worker_id: int, init_fn: Callable[[int], None] | None = None
) -> None:
    """Set a data loading process up; runs in that process.

    It ignores the first SIGTERM and exits on the second: PyTorch sends one to
    a worker that hangs at the end, and Python another one, so such a worker
    still goes. A worker whose main process has gone ends within seconds, as
    PyTorch's workers do.
    """
    seen = []

    def exit_on_second(signum: int, frame: Any) -> None:
        if seen:
            os._exit(128 + signum)
        seen.append(signum)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, exit_on_second)
    if init_fn is not None:
        init_fn(worker_id)


def protect_workers(dataloader: DataLoader) -> None:
    """Make the processes of a loader leave signals to the main process."""
    init_fn = dataloader.worker_init_fn
    if not (isinstance(init_fn, partial) and init_fn.func is start_worker):
        dataloader.worker_init_fn = partial(start_worker, init_fn=init_fn)


_LOOPS = {
    EpochBasedTrainLoop: ResumableEpochBasedTrainLoop,
    IterBasedTrainLoop: ResumableIterBasedTrainLoop,
}
_HOOKS = {CheckpointHook: AtomicCheckpointHook}


def replace_type(cfg: Any, registry: Any, table: Mapping[type, type]) -> Any:
    """A copy of a config with the class of ``table``; subclasses stay."""
    if not isinstance(cfg, Mapping) or 'type' not in cfg:
        return cfg
    kind = cfg['type']
    if not inspect.isclass(kind):
        kind = registry.get(kind)
    return {**cfg, 'type': table[kind]} if kind in table else cfg


class _TextOnce(Config):
    """A config whose text is formatted anew only where it has changed.

    That takes seconds for a large one, and MMEngine asks for it four times
    at the start, and with each checkpoint.
    """

    @property
    def pretty_text(self) -> str:
        content = repr(self.to_dict())
        before, text = vars(self).get('_formatted', ('', ''))
        if content != before:
            text = super().pretty_text
            vars(self)['_formatted'] = content, text
        return text


class FreezeHook(Hook):
    """Keep frozen modules in eval mode: batch norms keep their statistics.

    :class:`PortableRunner` adds it for the key ``freeze`` of a config. It has
    no state, and does the same on all processes.

    Args:
        names: Of the modules.
    """

    # Before hooks that look at the model.
    priority = 'VERY_HIGH'

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Undo ``train()``, which the loops call."""
        model = unwrap_model(runner.model)
        for name in self.names:
            module = model.get_submodule(name)
            if any(part.training for part in module.modules()):
                module.eval()


@RUNNERS.register_module()
class PortableRunner(CheckpointingRunner):
    """MMEngine's runner for one process and for many, on GPUs and on CPUs.

    Takes the configs of MMEngine's ``Runner``. What is different:

    * **Devices**: the top-level key ``device`` (``'auto'``, ``'cpu'``,
      ``'cuda'``, ``'cuda:N'``) is obeyed. Several processes work on a CPU,
      too, over gloo. A device that does not exist, and more processes than
      devices, are errors.
    * **Wrapping**: by default
      :class:`~mmext.engine.distributed.DistributedDataParallel`;
      ``find_unused_parameters`` and ``model_wrapper_cfg`` hold together.
      SyncBN becomes BN in processes on CPUs, where PyTorch has none.
    * **Activation checkpointing**: what ``activation_checkpointing`` names is
      never reentrant.
    * **Checkpoints** are whole or absent; old ones go when the new one is
      complete. A checkpoint of another model is an error. What is read is
      verified, and runs no code unless it is named and the top-level key
      ``trust_checkpoint`` is True.
    * **Classes**: weights of ``load_from`` that belong to classes are taken
      over by name, see :mod:`mmext.engine.class_rows`; the top-level key
      ``match_classes = False`` loads them as they are.
    * **Freezing**: modules that the top-level key ``freeze`` names are not
      trained, and stay in eval mode; see :func:`mmext.engine.freeze_modules`.
    * **Operators**: the top-level key ``ops_backend`` chooses their back end,
      see :func:`mmext.ops.choose_ops_backend`; kernels are compiled before the
      first step.
    * **Resume** goes on at the exact batch with the exact random numbers
      (those of data loading processes excepted), from the newest complete
      checkpoint. MMEngine's training loops and checkpoint hook are replaced
      by those of mmext.
    * **Signals**: Ctrl-C and SIGTERM end in a checkpoint to resume from, by
      :class:`~mmext.engine.GracefulStopHook`, which is always there.
    * **Errors** of the data name the image and the mask. Labels out of range
      end an evaluation, by :class:`mmext.EvaluationLabelHook`, which is
      always there.
    * **Loss balancers** of several tasks get what they need between steps
      from :class:`mmext.LossBalancerHook`, which a model with one has.
    * **The console** has a row of progress every few seconds; the environment,
      the config and the parts of the loss are in the log file.
    * A default hook set to None is left out, whatever its name.
    """

    def setup_env(self, env_cfg: dict) -> None:
        """Choose the device, join the other processes, set libraries up.

        Raises:
            ValueError: If a setting is where nothing reads it.
            ValueError: If the device does not exist, or the launcher did not
                say which process this is.
        """
        # The first thing that happens: before any process waits for another.
        check_misplaced_keys(self.cfg, type(self))
        if type(self.cfg) is Config:
            cfg = _TextOnce.__new__(_TextOnce)
            cfg.__setstate__(self.cfg.__getstate__())
            self.cfg = cfg
        env = None
        if self.distributed:
            env = read_launcher_env(self.launcher, os.environ)
        self.device = resolve_device(self.cfg.get('device') or 'auto', env)
        pin_device(self.device)
        dist_cfg = env_cfg.get('dist_cfg') or {}
        self.dist_timeout_s = dist_cfg.get('timeout', DEFAULT_TIMEOUT_S)
        self.local_world_size = (env and env.local_world_size) or 1
        if env is not None and not is_distributed():
            init_process_group(env, self.device, dist_cfg)
        elif env is not None:
            watch_ranks(self.dist_timeout_s)
        super().setup_env(env_cfg)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """Build the logger; what is long goes to its file only."""
        logger = super().build_logger(*args, **kwargs)
        shorten_console(logger)
        return logger

    def _log_env(self, env_cfg: dict) -> None:
        super()._log_env(env_cfg)
        self.logger.info(
            'Environment, config and all parts of the loss are in '
            f'{self.logger.log_file}'
        )
        text = f'Device: {self.device}'
        if self.distributed:
            backend = (env_cfg.get('dist_cfg') or {}).get('backend')
            text += (
                f', {self.world_size} process(es) over '
                f'{choose_backend(self.device, backend)}'
            )
        if self.device.type == 'cpu' and keep_freed_memory():
            text += ', freed memory is kept'
        self.logger.info(text)
        # Threads that are more than the processors wait for each other.
        cores, threads = os.cpu_count() or 1, torch.get_num_threads()
        processes = self.local_world_size
        if self.device.type == 'cpu' and threads > max(1, cores / processes):
            self.logger.warning(
                f'{processes} process(es) of this machine with {threads} '
                f'threads each share {cores} processors, which can make a '
                'step ten times as long; set OMP_NUM_THREADS='
                f'{max(cores // processes, 1)}'
            )
        choose_ops_backend(self.cfg.get('ops_backend') or 'auto')
        log_backend(self.logger, self.device.type)

    def build_log_processor(self, log_processor: Any) -> LogProcessor:
        """Build what formats the log."""
        processor = super().build_log_processor(log_processor)
        if self.device.type == 'cpu':
            # It would wake up a GPU that there is, to ask for its memory.
            processor._get_max_memory = lambda runner: 0
        return processor

    def dump_config(self) -> None:
        """Write nothing yet: the work dir may be that of another training.

        MMEngine calls it for tests, too; :meth:`train` writes the config.
        """

    @property
    def _config_path(self) -> Path:
        name = os.path.basename(self.cfg.filename or f'{self.timestamp}.py')
        return Path(self.work_dir, name)

    @master_only
    def _write_config(self) -> None:
        with atomic_path(self._config_path) as temporary:
            self.cfg.dump(str(temporary))

    def _written_files(self) -> list[Path]:
        """Files that the training replaces, as far as the names are known."""
        files = [self._config_path, Path(self.work_dir, LAST_CHECKPOINT)]
        folder = checkpoint_dir(self.hooks, self.work_dir)
        for hook in self.hooks:
            if isinstance(hook, CheckpointHook) and '://' not in folder:
                pattern = re.sub(r'{.*?}', '*', hook.filename_tmpl)
                files += Path(folder).glob(pattern)
        return files

    def wrap_model(
        self, model_wrapper_cfg: dict | None, model: nn.Module
    ) -> nn.Module:
        """Move the model to its device and wrap it for several processes."""
        if is_model_wrapper(model) or not self.distributed:
            return super().wrap_model(model_wrapper_cfg, model)
        sync_bn = self.cfg.get('sync_bn')
        if self.device.type == 'cpu':
            if sync_bn or any(
                isinstance(module, nn.SyncBatchNorm)
                for module in model.modules()
            ):
                self.logger.warning(
                    'SyncBN works on GPUs only; here each process keeps '
                    'statistics of its own (BN)'
                )
            model = revert_sync_batchnorm(model)
        elif sync_bn:
            model = convert_sync_batchnorm(model, sync_bn)
        cfg = model_wrapper_config(
            model_wrapper_cfg,
            self.device,
            self.cfg.get('find_unused_parameters'),
        )
        kind = cfg['type']
        if not inspect.isclass(kind):
            kind = MODEL_WRAPPERS.root.get(kind)
        loose = loose_parameters(model, kind)
        if loose:
            raise ValueError(
                f'{kind.__name__} averages the gradients of submodules only, '
                f'and {type(model).__name__} has trainable parameters outside '
                f'of them, which would differ between processes: '
                f'{", ".join(loose)}; put them into a submodule whose forward '
                'uses them'
            )
        wrapper = MODEL_WRAPPERS.build(
            cfg, default_args={'module': model.to(self.device)}
        )
        keep_parameter_names(wrapper)
        return wrapper

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader | dict,
        seed: int | None = None,
        diff_rank_seed: bool = False,
    ) -> DataLoader:
        """Build a loader whose errors name images."""
        loader = Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        name_failing_samples(loader.dataset)
        protect_workers(loader)
        return loader

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """Build the training loop, one that can resume anywhere."""
        if isinstance(loop, Mapping) and 'type' not in loop:
            kind = (
                EpochBasedTrainLoop
                if loop.get('by_epoch')
                else IterBasedTrainLoop
            )
            rest = {key: loop[key] for key in loop if key != 'by_epoch'}
            loop = {**rest, 'type': kind}
        return super().build_train_loop(replace_type(loop, ALL_LOOPS, _LOOPS))

    def build_optim_wrapper(
        self, optim_wrapper: OptimWrapper | dict
    ) -> OptimWrapper | OptimWrapperDict:
        """Build the optimizer; mixed precision works on CPUs, too."""
        cfg = None
        if self.device.type == 'cpu' and isinstance(optim_wrapper, Mapping):
            cfg = cpu_amp_cfg(optim_wrapper)
        if cfg is None:
            return super().build_optim_wrapper(optim_wrapper)
        result = super().build_optim_wrapper(cfg)
        if not has_bfloat16(self.device):
            result.enabled = optim_wrapper.get('dtype') is not None
            slow, fast = (
                min(timeit.repeat(partial(torch.mm, one, one), number=1))
                for one in (
                    torch.ones(256, 256).bfloat16(),
                    torch.ones(256, 256),
                )
            )
            self.logger.warning(
                'This CPU has no instructions for bfloat16: a matrix product '
                f'takes {slow / fast:.1f} times as long as in float32'
                + (
                    ''
                    if result.enabled
                    else '. Training goes on in float32; optim_wrapper.dtype='
                    'bfloat16 in --cfg-options asks for bfloat16 all the same'
                )
            )
        if result.enabled:
            self.logger.info(
                'Mixed precision on the CPU: bfloat16, loss not scaled'
            )
        return result

    def scale_lr(
        self, optim_wrapper: OptimWrapper, auto_scale_lr: dict | None = None
    ) -> None:
        """Scale the rates by the rule that mmext uses everywhere."""
        wrappers = [optim_wrapper]
        if isinstance(optim_wrapper, OptimWrapperDict):
            wrappers = list(optim_wrapper.values())
        groups = [
            (type(wrapper.optimizer).__name__, group, group['lr'])
            for wrapper in wrappers
            for group in wrapper.optimizer.param_groups
        ]
        super().scale_lr(optim_wrapper, auto_scale_lr)
        rule, factors = (auto_scale_lr or {}).get('rule'), {}
        for kind, group, rate in groups:
            ratio = group['lr'] / rate if rate else 1.0
            factor = rate_factor(ratio, kind, rule)
            if factor != ratio:
                group['lr'], factors[kind] = rate * factor, factor
        for kind, factor in factors.items():
            self.logger.info(f'{kind}: by the square root, {factor:.4g}')

    def register_hook(
        self, hook: Hook | dict, priority: str | int | None = None
    ) -> None:
        """Register a hook, ours in place of MMEngine's checkpoint hook."""
        super().register_hook(replace_type(hook, ALL_HOOKS, _HOOKS), priority)

    def register_default_hooks(self, hooks: dict | None = None) -> None:
        """Register the default hooks; one that is None is left out."""
        given = dict(hooks or {})
        builtin = (
            'runtime_info',
            'timer',
            'sampler_seed',
            'logger',
            'param_scheduler',
            'checkpoint',
        )
        super().register_default_hooks(
            {
                name: hook
                for name, hook in given.items()
                if hook is not None or name in builtin
            }
        )

    def register_hooks(
        self,
        default_hooks: dict | None = None,
        custom_hooks: list | None = None,
    ) -> None:
        """Register all hooks, and those that every run has."""
        super().register_hooks(default_hooks, custom_hooks)
        kinds = [GracefulStopHook, ProgressHook, EvaluationLabelHook]
        if self.distributed:
            kinds.append(RankWatchHook)
        balancer = getattr(unwrap_model(self.model), 'balancer', None)
        if hasattr(balancer, 'get_state'):
            kinds.append(LossBalancerHook)
        for kind in kinds:
            if not any(isinstance(hook, kind) for hook in self.hooks):
                self.register_hook(kind())
        if self._frozen:
            self.register_hook(FreezeHook(list(self._frozen)))
        names = self.cfg.get('activation_checkpointing')
        if names is not None:
            # MMEngine's wrappers are reentrant; the hook replaces them.
            self.register_hook(ActivationCheckpointHook(modules=names))

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save a checkpoint; the other processes can see that this does."""
        before = current_watch().note(CHECKPOINT)
        super().save_checkpoint(*args, **kwargs)
        current_watch().note(before)

    def train(self) -> nn.Module:
        """Train, and restore the signal handlers however it ends.

        Raises:
            PeerError: If another process failed, is gone, or did not come to
                a collective within ``env_cfg.dist_cfg.timeout``.
            WorkDirError: If the work dir cannot be used; a
                ``WorkDirInUseError`` if another training writes into it.
        """
        lock = nullcontext()
        if is_main_process():
            lock = work_dir_lock(self.work_dir, self._written_files())
        try:
            # Files that are read meanwhile run no code.
            careful = careful_readers(self.trust_checkpoint)
            with watched_run(), lock, careful:
                self._write_config()
                return super().train()
        finally:
            for hook in self.hooks:
                if isinstance(hook, GracefulStopHook):
                    hook.restore()

    def val(self) -> dict:
        """Validate with a checkpoint that fills the model; see `train`."""
        self._evaluating = True
        with watched_run(), careful_readers(self.trust_checkpoint):
            return super().val()

    def test(self) -> dict:
        """Test with a checkpoint that fills the model; see `train`."""
        self._evaluating = True
        with watched_run(), careful_readers(self.trust_checkpoint):
            return super().test()
