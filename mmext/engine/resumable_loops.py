"""Training loops that go on in the middle of an epoch.

MMEngine's epoch loop starts the epoch anew, with the iteration counter where
it was; its iteration loop reads and throws away the data up to there, unless
the sampler is one that it knows. Both loops here start at the very batch, in
the same shuffled order, by asking the batch sampler for indices only.

A validation leaves the random number generators as they were, so that a
resumed run, which does not repeat it, draws the same numbers.
"""

from bisect import bisect
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from ..registry import LOOPS
from .batch_skipping import make_skippable, set_sampler_epoch, skip_batches
from .rng_state import get_rng_state, set_rng_state

__all__ = ['ResumableEpochBasedTrainLoop', 'ResumableIterBasedTrainLoop']


class _Resumable:
    """What both loops share."""

    def _prepare(self) -> None:
        self._batches = make_skippable(self.dataloader)
        # Batches of the current epoch that are trained.
        self.batch_in_epoch = 0
        # State to save while a validation is drawing numbers.
        self.rng_before_val: Mapping[str, Any] | None = None
        self._rng_to_restore: Mapping[str, Any] | None = None
        self._pending_val = False

    def go_on_from(
        self,
        *,
        epoch: int,
        iteration: int,
        batch_in_epoch: int,
        pending_val: bool,
        rng_state: Mapping[str, Any] | None,
    ) -> None:
        """Set the position that :meth:`run` starts at.

        Args:
            epoch: Epochs finished.
            iteration: Iterations trained.
            batch_in_epoch: Batches trained of the epoch in progress.
            pending_val: A validation was due here, and not finished.
            rng_state: Random number generators at that time, if known.
        """
        self._epoch = epoch
        self._iter = iteration
        self.batch_in_epoch = batch_in_epoch
        self._pending_val = pending_val
        self._rng_to_restore = rng_state

    def _restore_rng(self) -> None:
        if self._rng_to_restore is not None:
            set_rng_state(self._rng_to_restore)
            self._rng_to_restore = None

    def _validate(self) -> None:
        self._pending_val = False
        self.rng_before_val = self._rng_to_restore or get_rng_state()
        self.runner.val_loop.run()
        if self._rng_to_restore is None:
            set_rng_state(self.rng_before_val)
        self.rng_before_val = None

    def _validate_if_pending(self) -> None:
        if self._pending_val and self.runner.val_loop is not None:
            print_log(
                'The validation that was interrupted is done first.',
                logger='current',
            )
            self._validate()


@LOOPS.register_module()
class ResumableEpochBasedTrainLoop(_Resumable, EpochBasedTrainLoop):
    """Train by epochs, from any batch of an epoch.

    :class:`~mmext.engine.PortableRunner` uses it in place of MMEngine's
    ``EpochBasedTrainLoop``, whose arguments it takes.

    Args:
        runner: The runner.
        dataloader: Training data, or the config of its loader.
        max_epochs: Epochs to train in all.
        val_begin: First epoch to validate after, counted from 1.
        val_interval: Validate after every so many epochs, and at the end.
        dynamic_intervals: Pairs ``(epoch, interval)``: from that epoch on
            another ``val_interval``.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        dynamic_intervals: list[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(
            runner,
            dataloader,
            max_epochs,
            val_begin,
            val_interval,
            dynamic_intervals,
        )
        self._prepare()

    def is_val_due_after(self, iteration: int) -> bool:
        """Whether a validation follows an iteration, with no step between.

        Never: the end of an epoch, with its hooks, comes before.
        """
        return False

    def run(self) -> nn.Module:
        """Train; returns the model."""
        self.runner.call_hook('before_train')
        self._validate_if_pending()
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._decide_current_val_interval()
            if (
                self.runner.val_loop is not None
                and self._epoch >= self.val_begin
                and (
                    self._epoch % self.val_interval == 0
                    or self._epoch == self._max_epochs
                )
            ):
                self._validate()
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_epoch(self) -> None:
        """Train the rest of the epoch in progress."""
        start = self.batch_in_epoch
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        if start == 0:
            self._restore_rng()
        self._batches.skip_next(start)
        # Drawing the seed of the workers, which this does, belongs to the
        # beginning of an epoch and was done by the run that is resumed.
        batches = iter(self.dataloader)
        self._restore_rng()
        for idx, data_batch in enumerate(batches, start):
            self.run_iter(idx, data_batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1
        self.batch_in_epoch = 0

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Train one batch, number ``idx`` of its epoch."""
        # Before the hooks of the iteration, which may save.
        self.batch_in_epoch = idx + 1
        super().run_iter(idx, data_batch)


class _EndlessBatches:
    """Batches of one epoch after the other, in an endless row.

    Args:
        loop: Loop that trains them.
    """

    def __init__(self, loop: 'ResumableIterBasedTrainLoop') -> None:
        self.loop = loop
        self._current: Iterator | None = None
        self._epoch = 0

    def skip(self, num: int) -> None:
        """Leave out the first ``num``. Before the first is taken."""
        self._epoch = skip_batches(
            self.loop.dataloader, self.loop._batches, num
        )

    def __next__(self) -> Any:
        loader = self.loop.dataloader
        if self._current is None:
            self._current = iter(loader)
            self.loop._restore_rng()
        try:
            return next(self._current)
        except StopIteration:
            self._epoch += 1
            set_sampler_epoch(loader, self._epoch)
            self._current = iter(loader)
            return next(self._current)


@LOOPS.register_module()
class ResumableIterBasedTrainLoop(_Resumable, IterBasedTrainLoop):
    """Train by iterations, from any iteration on.

    :class:`~mmext.engine.PortableRunner` uses it in place of MMEngine's
    ``IterBasedTrainLoop``, whose arguments it takes. Works with endless
    samplers and with those that end, and with any batch sampler.

    Args:
        runner: The runner.
        dataloader: Training data, or the config of its loader.
        max_iters: Iterations to train in all.
        val_begin: First iteration to validate after, counted from 1.
        val_interval: Validate after every so many iterations, and at the
            end.
        dynamic_intervals: Pairs ``(iteration, interval)``: from that
            iteration on another ``val_interval``.
        fast_forward_on_resume: Begin the data anew on resume instead of
            going on in it. (MMEngine's name for it.)
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        max_iters: int,
        val_begin: int = 1,
        val_interval: int = 1000,
        dynamic_intervals: list[tuple[int, int]] | None = None,
        fast_forward_on_resume: bool = False,
    ) -> None:
        super().__init__(
            runner,
            dataloader,
            max_iters,
            val_begin,
            val_interval,
            dynamic_intervals,
            fast_forward_on_resume,
        )
        self._prepare()
        self.dataloader_iterator = _EndlessBatches(self)

    def is_val_due_after(self, iteration: int) -> bool:
        """Whether a validation follows an iteration, with no step between.

        Args:
            iteration: Counted from 1.
        """
        step = bisect(self.dynamic_milestones, iteration + 1)
        interval = self.dynamic_intervals[step - 1]
        return (
            self.runner.val_loop is not None
            and iteration >= self.val_begin
            and (iteration % interval == 0 or iteration == self._max_iters)
        )

    def run(self) -> nn.Module:
        """Train; returns the model."""
        self.runner.call_hook('before_train')
        # The whole training counts as one epoch.
        self.runner.call_hook('before_train_epoch')
        self._validate_if_pending()
        if self._iter > 0 and not self.fast_forward_on_resume:
            self.dataloader_iterator.skip(self._iter)
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(self.dataloader_iterator))
            self._decide_current_val_interval()
            if self.is_val_due_after(self._iter):
                self._validate()
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model
