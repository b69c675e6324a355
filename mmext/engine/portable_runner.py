"""A runner that does the same on CUDA devices and on the CPU."""

import inspect
import os
from collections.abc import Mapping
from typing import Any

from mmengine.dist import is_distributed, master_only
from mmengine.hooks import CheckpointHook, Hook
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

from ..ops import log_backend
from ..preflight.misplaced_keys import check_misplaced_keys
from ..registry import RUNNERS
from ..utils.files import atomic_path
from ._runner_checkpoints import CheckpointingRunner
from .activation_checkpoint_hook import ActivationCheckpointHook
from .checkpoint_hook import AtomicCheckpointHook
from .cpu_amp_optim_wrapper import cpu_amp_cfg
from .device import pin_device, resolve_device
from .dist_setup import DEFAULT_TIMEOUT_S, choose_backend, init_process_group
from .graceful_stop_hook import GracefulStopHook
from .launcher import read_launcher_env
from .model_wrapping import model_wrapper_config
from .resumable_loops import (
    ResumableEpochBasedTrainLoop,
    ResumableIterBasedTrainLoop,
)
from .sample_errors import name_failing_samples
from .worker_signals import protect_workers

__all__ = ['PortableRunner', 'replace_type']

_LOOPS = {
    EpochBasedTrainLoop: ResumableEpochBasedTrainLoop,
    IterBasedTrainLoop: ResumableIterBasedTrainLoop,
}
_HOOKS = {CheckpointHook: AtomicCheckpointHook}


def replace_type(cfg: Any, registry: Any, table: Mapping[type, type]) -> Any:
    """A config with another class in place of one of MMEngine's.

    Args:
        cfg: Config of a component, with ``type``. It is not changed.
        registry: Where names are looked up.
        table: Class -> the class to use instead. Subclasses stay.

    Returns:
        A copy with the other class as ``type``, or ``cfg`` itself.

    Examples:
        >>> cfg = replace_type({'type': 'CheckpointHook'}, ALL_HOOKS, _HOOKS)
        >>> cfg['type'].__name__
        'AtomicCheckpointHook'
    """
    if not isinstance(cfg, Mapping) or 'type' not in cfg:
        return cfg
    kind = cfg['type']
    if not inspect.isclass(kind):
        kind = registry.get(kind)
    return {**cfg, 'type': table[kind]} if kind in table else cfg


@RUNNERS.register_module()
class PortableRunner(CheckpointingRunner):
    """MMEngine's runner for one process and for many, on GPUs and on CPUs.

    Takes the configs of MMEngine's ``Runner``. What is different:

    * **Devices**: the top-level key ``device`` (``'auto'``, ``'cpu'``,
      ``'cuda'``, ``'cuda:N'``) is obeyed. Several processes work on a CPU,
      too, over gloo. A device that does not exist, and more processes than
      devices, are errors.
    * **Wrapping**: by default
      :class:`~mmext.engine.DistributedDataParallel`;
      ``find_unused_parameters`` and ``model_wrapper_cfg`` hold together.
      SyncBN becomes BN in processes on CPUs, where PyTorch has none.
    * **Activation checkpointing**: what ``activation_checkpointing`` names is
      never reentrant.
    * **Checkpoints** are whole or absent; old ones go when the new one is
      complete. A checkpoint of another model is an error.
    * **Resume** goes on at the exact batch with the exact random numbers
      (those of data loading processes excepted), from the newest complete
      checkpoint. MMEngine's training loops and checkpoint hook are replaced
      by those of mmext.
    * **Signals**: Ctrl-C and SIGTERM end in a checkpoint to resume from, by
      :class:`~mmext.engine.GracefulStopHook`, which is always there.
    * **Errors** of the data name the image.
    * A default hook set to None is left out, whatever its name.
    """

    def setup_env(self, env_cfg: dict) -> None:
        """Choose the device, join the other processes, set libraries up.

        Args:
            env_cfg: As MMEngine's. ``dist_cfg.backend`` may be left out.

        Raises:
            MisplacedKeyError: If a setting is where nothing reads it.
            ValueError: If the device does not exist, or the launcher did not
                tell which process this is.
        """
        # The first thing that happens: before any process waits for another.
        check_misplaced_keys(self.cfg, type(self))
        env = None
        if self.distributed:
            env = read_launcher_env(self.launcher, os.environ)
        self.device = resolve_device(self.cfg.get('device') or 'auto', env)
        pin_device(self.device)
        dist_cfg = env_cfg.get('dist_cfg') or {}
        self.dist_timeout_s = dist_cfg.get('timeout', DEFAULT_TIMEOUT_S)
        if env is not None and not is_distributed():
            init_process_group(env, self.device, dist_cfg)
        super().setup_env(env_cfg)

    def _log_env(self, env_cfg: dict) -> None:
        super()._log_env(env_cfg)
        text = f'Device: {self.device}'
        if self.distributed:
            backend = (env_cfg.get('dist_cfg') or {}).get('backend')
            text += (
                f', {self.world_size} process(es) over '
                f'{choose_backend(self.device, backend)}'
            )
        self.logger.info(text)
        log_backend(self.logger)

    def build_log_processor(self, log_processor: Any) -> LogProcessor:
        """Build what formats the log.

        Args:
            log_processor: It, or its config.
        """
        processor = super().build_log_processor(log_processor)
        if self.device.type == 'cpu':
            # It would wake up a GPU that there is, to ask for its memory.
            processor._get_max_memory = lambda runner: 0
        return processor

    @master_only
    def dump_config(self) -> None:
        """Write the config into the work dir."""
        name = os.path.basename(self.cfg.filename or f'{self.timestamp}.py')
        with atomic_path(os.path.join(self.work_dir, name)) as temporary:
            self.cfg.dump(str(temporary))

    def wrap_model(
        self, model_wrapper_cfg: dict | None, model: nn.Module
    ) -> nn.Module:
        """Move the model to its device and wrap it for several processes.

        Args:
            model_wrapper_cfg: See
                :func:`~mmext.engine.model_wrapper_config`.
            model: The model.

        Raises:
            ValueError: If ``find_unused_parameters`` is set to different
                values.
        """
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
        return MODEL_WRAPPERS.build(
            cfg, default_args={'module': model.to(self.device)}
        )

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader | dict,
        seed: int | None = None,
        diff_rank_seed: bool = False,
    ) -> DataLoader:
        """Build a loader whose errors name images.

        Args:
            dataloader: Its config, or a loader, which is changed.
            seed: Of its sampler.
            diff_rank_seed: Let each rank have a seed of its own.
        """
        loader = Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        name_failing_samples(loader.dataset)
        protect_workers(loader)
        return loader

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """Build the training loop, one that can resume anywhere.

        Args:
            loop: The loop, or its config.
        """
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
        """Build the optimizer; mixed precision works on CPUs, too.

        Args:
            optim_wrapper: The wrapper, or its config.

        Raises:
            ValueError: If the config asks for float16 on a CPU.
        """
        if self.device.type == 'cpu' and isinstance(optim_wrapper, Mapping):
            cfg = cpu_amp_cfg(optim_wrapper)
            if cfg is not None:
                self.logger.info(
                    'Mixed precision on the CPU: bfloat16, loss not scaled'
                )
                optim_wrapper = cfg
        return super().build_optim_wrapper(optim_wrapper)

    def register_hook(
        self, hook: Hook | dict, priority: str | int | None = None
    ) -> None:
        """Register a hook.

        Args:
            hook: The hook, or its config.
            priority: Its place among the others.
        """
        super().register_hook(replace_type(hook, ALL_HOOKS, _HOOKS), priority)

    def register_default_hooks(self, hooks: dict | None = None) -> None:
        """Register the default hooks.

        Args:
            hooks: Name -> hook, its config, or None to have none.
        """
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
        """Register all hooks, and the one that stops on signals.

        Args:
            default_hooks: Name -> hook, its config, or None.
            custom_hooks: More hooks.
        """
        super().register_hooks(default_hooks, custom_hooks)
        if not any(isinstance(hook, GracefulStopHook) for hook in self.hooks):
            self.register_hook(GracefulStopHook())
        names = self.cfg.get('activation_checkpointing')
        if names is not None:
            # MMEngine's wrappers are reentrant; the hook replaces them.
            self.register_hook(ActivationCheckpointHook(modules=names))

    def train(self) -> nn.Module:
        """Train, and give the signals back however it ends.

        Raises:
            GracefulExit: When a signal ended the training.
        """
        try:
            return super().train()
        finally:
            for hook in self.hooks:
                if isinstance(hook, GracefulStopHook):
                    hook.restore()
