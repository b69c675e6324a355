"""Ctrl-C and SIGTERM end a training with a checkpoint to resume from."""

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.dist import barrier, get_dist_info, is_main_process
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner
from torch import distributed as dist

from ...registry import HOOKS
from ..distributed import PeerError, lost_ranks, missing_ranks
from ..launch import DEFAULT_TIMEOUT_S, default_store
from .checkpoint import saving_on_all_ranks, write_last_checkpoint

_POLL_S = 0.05
# A rank answers after each step and each batch of a validation. One that has
# not for so long after a signal is not there any more: a launcher that loses
# a process sends that signal to the others.
_ANSWER_S = 30
# Signals within this time count as one: a launcher often passes on what its
# processes got already.
_SAME_SIGNAL_S = 1.0


@dataclass
class _State:
    """Content of the key."""

    signum: int
    ranks: list[int]
    begun: int
    stop_at: int | None = None

    def text(self) -> str:
        return json.dumps(vars(self))


class StopGate:
    """One rank's view of the agreement on where to stop.

    Examples:
        >>> store = dist.HashStore()
        >>> fast, slow = (StopGate(store, rank, 2) for rank in (0, 1))
        >>> fast.finish_unit(), fast.should_stop(begin=True)
        (1, False)
        >>> slow.request(15)  # a signal during its first step
        >>> slow.finish_unit(), slow.should_stop(begin=True)
        (1, False)
        >>> fast.finish_unit(), fast.should_stop(begin=True)
        (2, True)
        >>> slow.finish_unit(), slow.should_stop(begin=True)
        (2, True)
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int = 0,
        world_size: int = 1,
        key: str = 'mmext/stop',
    ) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.key = key
        self.signum: int | None = None
        self._finished = 0
        self._num_meetings = 0

    def request(self, signum: int) -> None:
        """Ask for a stop. Only sets a variable, so a handler may call it."""
        if self.signum is None:
            self.signum = signum

    def finish_unit(self) -> int:
        """Note that a unit is finished; returns how many are."""
        self._finished += 1
        return self._finished

    def should_stop(self, *, begin: bool) -> bool:
        """Whether to stop here; if not, with ``begin``, the next unit begins.

        ``begin`` is False where a rank may stop or go on without a collective.
        """
        text = ''
        if self.store.check([self.key]):
            text = self.store.get(self.key).decode()
        elif self.signum is None:
            return False
        while True:
            wanted, answer = self._next_state(text, begin)
            if wanted is None:
                return answer
            new = self.store.compare_set(self.key, text, wanted).decode()
            if new == wanted:
                return answer
            text = new  # another rank was faster

    def _next_state(self, text: str, begin: bool) -> tuple[str | None, bool]:
        """What the key should become, None for no change; and the answer."""
        if text:
            state = _State(**json.loads(text))
        else:
            state = _State(self.signum, [], 0)
        self.signum = state.signum
        if state.stop_at is not None:
            return None, self._finished >= state.stop_at
        ranks = {*state.ranks, self.rank}
        if len(ranks) == self.world_size:
            # All others are between units too, or in one that is counted.
            state.stop_at = max(state.begun, self._finished)
            state.ranks = sorted(ranks)
            return state.text(), self._finished >= state.stop_at
        begun = max(state.begun, self._finished + begin)
        if state.ranks == sorted(ranks) and state.begun == begun:
            return None, False
        state.ranks, state.begun = sorted(ranks), begun
        return state.text(), False

    def meet(self, timeout_s: float) -> bool:
        """Wait until all ranks are here, or until it is time to stop.

        To be called before a unit whose collectives block for long, from
        where a rank could not answer: the next unit is begun on return.
        Returns whether to stop here. PeerError if a rank fails or ends,
        does not come within ``timeout_s`` seconds, or does not answer to a
        signal.
        """
        self._num_meetings += 1
        name = f'{self.key}/meeting{self._num_meetings}'
        deadline = time.monotonic() + timeout_s
        signalled = False
        arrived = self.store.add(name, 1)
        while True:
            complete = arrived >= self.world_size
            if self.should_stop(begin=complete):
                return True
            if complete:
                return False
            if self.signum is not None and not signalled:
                signalled = True
                deadline = min(deadline, time.monotonic() + _ANSWER_S)
            lost = lost_ranks()
            if time.monotonic() > deadline or lost:
                why = f' within {timeout_s:g} s (env_cfg.dist_cfg.timeout)'
                if lost:
                    why = ', and another one has failed or ended'
                elif signalled:
                    why = f' within {_ANSWER_S} s after a signal'
                raise PeerError(
                    f'only {arrived} of {self.world_size} processes came to '
                    f'the end of the validation{why}: '
                    f'{missing_ranks() or "see their output"}'
                )
            time.sleep(_POLL_S)
            arrived = self.store.add(name, 0)


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

    The step in progress is finished, the ranks agree on a step to stop at
    (see :mod:`~mmext.engine.hooks.graceful_stop`), rank 0 saves
    ``stopped_iter_N.pth`` in the work dir, and all end with
    :class:`GracefulExit`. ``--resume`` goes on from there; no step is lost
    and none is done twice. A validation is left at once and done on resume.
    A later signal ends the process immediately, without a checkpoint.

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
        self._gate = StopGate(dist.HashStore())
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
        elif now - self._since > _SAME_SIGNAL_S:
            _say(f'{name} again: stopped at once')
            os._exit(128 + signum)

    # Places where a run can stop -------------------------------------------

    def before_train(self, runner: Runner) -> None:
        """Take over the signals, and join the other ranks."""
        rank, world_size = get_dist_info()
        store = default_store() if world_size > 1 else dist.HashStore()
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
        if self._training:
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
        with saving_on_all_ranks(runner):
            runner.save_checkpoint(
                runner.work_dir, name, meta=meta, by_epoch=False
            )
        if is_main_process():
            path = os.path.join(runner.work_dir, name)
            write_last_checkpoint(runner.work_dir, path)
            for other in Path(runner.work_dir).glob(_FILENAME.format('*')):
                if other.name != name:
                    other.unlink(missing_ok=True)
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
