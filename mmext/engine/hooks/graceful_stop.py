"""Ctrl-C and SIGTERM end a training with a checkpoint to resume from."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import barrier, get_world_size, is_main_process
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner
from torch import distributed as dist

from ...registry import HOOKS
from ...utils.files import retry_transient
from ...utils.torch_compat import has_key
from ..checkpoint.work_dir import write_last_checkpoint
from ..distributed import StepVote
from ..launch import default_store
from .checkpoint import saving_on_all_ranks

# Signals within this time count as one: a launcher often passes on what its
# processes got already.
_SAME_SIGNAL_S = 1.0
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


@HOOKS.register_module()
class GracefulStopHook(Hook):
    """Stop at the end of a step when a signal asks for it.

    The step in progress is finished, rank 0 saves ``stopped_iter_N.pth`` in
    the work dir, and all ranks end with :class:`GracefulExit`. ``--resume``
    goes on from there; no step is lost and none is done twice. A validation
    is left at once and done on resume. A later signal ends the process
    immediately, without a checkpoint.

    With several processes, they begin a reduction of one number over Gloo
    after each step, and learn after the next one whether one of them has got
    a signal. A validation has no collectives until its metrics are gathered,
    and may be uneven: there, each rank looks after each batch for a note of
    the others in the store, and all agree once, when they leave it or have
    come to its end.

    While gradients are accumulated, they are saved, too. One stop checkpoint
    is kept, the last.

    Args:
        signals: Names of the signals to act on.

    Raises:
        ValueError: If a name is no signal of this system.
    """

    # After all others, in particular those that save and that step schedules.
    priority = 'LOWEST'

    def __init__(self, signals: Sequence[str] = ('SIGINT', 'SIGTERM')) -> None:
        names = signal.Signals.__members__
        unknown = [name for name in signals if name not in names]
        if unknown:
            raise ValueError(
                f'signals must be names of signals, got {unknown}; for '
                "example 'SIGTERM' or 'SIGUSR1'"
            )
        self.signals = [names[name] for name in signals]
        self._previous: dict[int, Any] = {}
        # The first signal; None as long as there is none.
        self._signum: int | None = None
        self._vote: StepVote | None = None
        self._key = ''
        self._pid = os.getpid()
        self._since: float | None = None
        self._training = False
        self._validating = False

    # Signals ---------------------------------------------------------------

    @property
    def is_requested(self) -> bool:
        """Whether a signal has come, here or on another rank."""
        return self._signum is not None

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
            self._signum = signum
            _say(
                f'{name}: stopping after this step, with a checkpoint; once '
                'more to stop at once without one'
            )
        elif now - self._since > _SAME_SIGNAL_S:
            _say(f'{name} again: stopped at once')
            os._exit(128 + signum)

    # Agreement -------------------------------------------------------------

    def _agree(self, *, now: bool = True) -> bool:
        """Whether any rank has got a signal. All come here together.

        If not ``now``, whether one had got it the last time: nothing is waited
        for, and a rank that is in another step is found by the vote of DDP.
        """
        if self._vote is None:
            return self._signum is not None
        signum = self._vote.end_largest(self._note)
        if not signum:
            self._vote.begin_largest(self._signum or 0)
            if now:
                signum = self._vote.end_largest(self._note)
        self._signum = signum or self._signum
        return signum > 0

    def _note(self) -> None:
        """Let ranks in a validation know of a signal, and learn of theirs."""
        store = default_store()
        if self._signum is not None:
            store.set(self._key, str(self._signum))
        elif has_key(store, self._key):
            self._signum = int(store.get(self._key))

    # Places where a run can stop -------------------------------------------

    def before_train(self, runner: Runner) -> None:
        """Take over the signals, and join the other ranks."""
        self._key = f'mmext/stop{next(_TRAININGS)}'
        self._signum = self._vote = None
        if get_world_size() > 1:
            self._vote = StepVote(dist.group.WORLD)
        self._training = True
        self.install()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        """Stop after this step, if a rank has got a signal."""
        if self._agree(now=False):
            val_due = getattr(runner.train_loop, 'is_val_due_after', None)
            self._stop(
                runner,
                iteration=runner.iter + 1,
                pending_val=val_due is not None and val_due(runner.iter + 1),
            )

    def before_val_epoch(self, runner: Runner) -> None:
        """Leave the validation, if a rank has got a signal."""
        if self._training:
            self._validating = True
            self._leave_validation(runner, num_done=0)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence | None = None,
    ) -> None:
        """Leave the validation, if a rank has got a signal."""
        if self._validating:
            self._leave_validation(runner, num_done=batch_idx + 1)

    def _leave_validation(self, runner: Runner, num_done: int) -> None:
        if self._vote is not None:
            self._note()
        # At the end, metrics are gathered next, which no rank can leave.
        is_over = num_done == len(runner.val_dataloader)
        if (is_over or self._signum is not None) and self._agree():
            self._stop(runner, iteration=runner.iter, pending_val=True)

    def after_val(self, runner: Runner) -> None:
        """Stop between the validation and the next step."""
        if self._validating:
            self._validating = False
            if self._agree():
                self._stop(runner, iteration=runner.iter, pending_val=False)

    def after_train(self, runner: Runner) -> None:
        """Give the signals back."""
        self.restore()

    # Stopping --------------------------------------------------------------

    def _stop(
        self, runner: Runner, *, iteration: int, pending_val: bool
    ) -> None:
        if self._validating:
            for hook in runner.hooks:
                # Puts the trained weights back in place of the averaged ones.
                if isinstance(hook, EMAHook):
                    hook.after_val_epoch(runner)
        name = _FILENAME.format(iteration)
        meta = {
            'epoch': runner.epoch,
            'iter': iteration,
            'pending_val': pending_val,
        }
        with saving_on_all_ranks(runner):
            runner.save_checkpoint(
                runner.work_dir, name, meta=meta, by_epoch=False
            )
        if is_main_process():
            path = os.path.join(runner.work_dir, name)
            write_last_checkpoint(runner.work_dir, path)
            for other in Path(runner.work_dir).glob(_FILENAME.format('*')):
                if other.name != name and not other.is_dir():
                    retry_transient(other.unlink, missing_ok=True)
            signame = signal.Signals(self._signum).name
            runner.logger.info(
                f'{signame}: stopped after iteration {iteration} (of '
                f'{runner.max_iters}), saved {path}. To go on, start the same '
                'command with --resume.'
            )
        # A launcher kills the rest when the first process ends.
        barrier()
        self.restore()
        raise GracefulExit(self._signum)
