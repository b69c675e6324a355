"""Ctrl-C and SIGTERM end a training with a checkpoint to resume from."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import barrier, get_dist_info, is_main_process
from mmengine.hooks import EMAHook, Hook
from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner

from ..registry import HOOKS
from .checkpoint_hook import write_last_checkpoint
from .dist_setup import DEFAULT_TIMEOUT_S, default_store
from .stop_gate import LocalStore, StopGate

__all__ = ['GracefulExit', 'GracefulStopHook']

_FILENAME = 'stopped_iter_{}.pth'
# Trainings of this process, the same number on all ranks.
_TRAININGS = itertools.count()


class GracefulExit(SystemExit):
    """A training was ended by a signal, and its state saved.

    Args:
        signum: The signal. The exit code is 128 plus this, as shells count.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum


def _say(text: str) -> None:
    """Write to stderr from a signal handler, where buffers may be in use."""
    os.write(2, f'\n{text}\n'.encode())


def _holds_gradients(optim_wrapper: Any, iteration: int) -> bool:
    """Whether gradients wait for the optimizer after an iteration."""
    wrappers = (
        optim_wrapper.values()
        if isinstance(optim_wrapper, OptimWrapperDict)
        else [optim_wrapper]
    )
    return any(
        iteration % getattr(wrapper, '_accumulative_counts', 1)
        for wrapper in wrappers
    )


def _remove_other_stops(work_dir: str, keep: str) -> None:
    for path in Path(work_dir).glob(_FILENAME.format('*')):
        if path.name != keep:
            path.unlink(missing_ok=True)


@HOOKS.register_module()
class GracefulStopHook(Hook):
    """Stop at the end of a step when a signal asks for it.

    The step in progress is finished, the ranks agree on a step to stop at
    (see :mod:`~mmext.engine.stop_gate`), rank 0 saves
    ``stopped_iter_N.pth`` in the work dir, and all end with
    :class:`GracefulExit`. ``--resume`` goes on from there; no step is lost
    and none is done twice. A validation is left at once and done on resume.
    A later signal ends the process immediately, without a checkpoint.

    Between steps of the optimizer, while gradients are accumulated, a run is
    not stopped, as they could not be saved. One stop checkpoint is kept, the
    last.

    Args:
        signals: Names of the signals to act on.
        grace_s: Time in seconds after the first signal in which more of them
            count as the same, since a launcher often passes on what its
            processes got already.

    Raises:
        ValueError: If a name is no signal of this system, or ``grace_s`` is
            negative.
    """

    # After all others, in particular those that save and that step schedules.
    priority = 'LOWEST'

    def __init__(
        self,
        signals: Sequence[str] = ('SIGINT', 'SIGTERM'),
        grace_s: float = 1.0,
    ) -> None:
        names = signal.Signals.__members__
        unknown = [name for name in signals if name not in names]
        if unknown:
            raise ValueError(
                f'signals must be names of signals, got {unknown}; for '
                "example 'SIGTERM' or 'SIGUSR1'"
            )
        if grace_s < 0:
            raise ValueError(f'grace_s must not be negative, got {grace_s}')
        self.signals = [names[name] for name in signals]
        self.grace_s = grace_s
        self._previous: dict[int, Any] = {}
        self._gate = StopGate(LocalStore())
        self._pid = os.getpid()
        self._since: float | None = None
        self._training = False
        self._validating = False

    # Signals ---------------------------------------------------------------

    @property
    def is_requested(self) -> bool:
        """Whether a signal has come, here or on another rank."""
        return self._gate.signum is not None

    def install(self) -> None:
        """Take over the signals. Does nothing outside the main thread."""
        if self._previous or (
            threading.current_thread() is not threading.main_thread()
        ):
            return
        self._pid, self._since = os.getpid(), None
        for signum in self.signals:
            self._previous[signum] = signal.signal(signum, self._on_signal)

    def restore(self) -> None:
        """Give the signals back to who had them before."""
        while self._previous:
            signum, handler = self._previous.popitem()
            # None stands for a handler that was not set from Python.
            signal.signal(
                signum, signal.SIG_DFL if handler is None else handler
            )
        self._training = self._validating = False

    def _on_signal(self, signum: int, frame: Any) -> None:
        if os.getpid() != self._pid:
            # A data loading process that inherited this handler. The main
            # process decides.
            return
        name = signal.Signals(signum).name
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._gate.request(signum)
            _say(
                f'{name}: stopping after this step, with a checkpoint; once '
                'more to stop at once without one'
            )
        elif now - self._since > self.grace_s:
            _say(f'{name} again: stopped at once')
            os._exit(128 + signum)

    # Places where a run can stop -------------------------------------------

    def before_train(self, runner: Runner) -> None:
        """Take over the signals, and join the other ranks."""
        rank, world_size = get_dist_info()
        store = default_store() if world_size > 1 else LocalStore()
        key = f'mmext/stop{next(_TRAININGS)}'
        self._gate = StopGate(store, rank, world_size, key)
        self._training = True
        self.install()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """Stop after this step, if all agree."""
        if _holds_gradients(runner.optim_wrapper, runner.iter + 1):
            return
        self._gate.finish_unit()
        if self._gate.should_stop(begin=True):
            val_due = getattr(runner.train_loop, 'is_val_due_after', None)
            self._stop(
                runner,
                epoch=runner.epoch,
                iteration=runner.iter + 1,
                pending_val=val_due is not None and val_due(runner.iter + 1),
            )

    def before_val_epoch(self, runner: Runner) -> None:
        """The way from a step into the validation is finished."""
        if self._training and not _holds_gradients(
            runner.optim_wrapper, runner.iter
        ):
            self._validating = True
            self._gate.finish_unit()
            self._leave_validation(runner, num_done=0)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence | None = None,
    ) -> None:
        """Leave the validation, if all agree."""
        if self._validating:
            self._leave_validation(runner, num_done=batch_idx + 1)

    def _leave_validation(self, runner: Runner, num_done: int) -> None:
        if num_done < len(runner.val_dataloader):
            stop = self._gate.should_stop(begin=False)
        else:
            # Metrics are gathered next; from there no rank can answer.
            stop = self._gate.meet(
                getattr(runner, 'dist_timeout_s', DEFAULT_TIMEOUT_S)
            )
        if stop:
            self._stop(
                runner,
                epoch=runner.epoch,
                iteration=runner.iter,
                pending_val=True,
            )

    def after_val(self, runner: Runner) -> None:
        """Stop between the validation and the next step."""
        if not self._validating:
            return
        self._validating = False
        self._gate.finish_unit()
        if self._gate.should_stop(begin=True):
            self._stop(
                runner,
                epoch=runner.epoch,
                iteration=runner.iter,
                pending_val=False,
            )

    def after_train(self, runner: Runner) -> None:
        """Give the signals back."""
        self.restore()

    # Stopping --------------------------------------------------------------

    def _stop(
        self, runner: Runner, *, epoch: int, iteration: int, pending_val: bool
    ) -> None:
        if self._validating:
            for hook in runner.hooks:
                # Puts the trained weights back in place of the averaged ones.
                if isinstance(hook, EMAHook):
                    hook.after_val_epoch(runner)
        name = _FILENAME.format(iteration)
        meta = {'epoch': epoch, 'iter': iteration, 'pending_val': pending_val}
        runner.save_checkpoint(
            runner.work_dir, name, meta=meta, by_epoch=False
        )
        if is_main_process():
            path = os.path.join(runner.work_dir, name)
            write_last_checkpoint(runner.work_dir, path)
            _remove_other_stops(runner.work_dir, name)
            signame = signal.Signals(self._gate.signum).name
            runner.logger.info(
                f'{signame}: stopped after iteration {iteration} (of '
                f'{runner.max_iters}), saved {path}. To go on, start the same '
                'command with --resume.'
            )
        # A launcher kills the rest when the first process ends.
        barrier()
        self.restore()
        raise GracefulExit(self._gate.signum)
