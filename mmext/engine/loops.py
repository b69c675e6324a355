"""Training loops that go on in the middle of an epoch.

MMEngine's epoch loop starts the epoch anew, with the iteration counter where
it was; its iteration loop reads and throws away the data up to there, unless
the sampler is one that it knows. Both loops here start at the very batch, in
the same shuffled order, by asking the batch sampler for indices only.

A validation leaves the random number generators as they were, so that a
resumed run, which does not repeat it, draws the same numbers.
"""

import logging
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Any
from unittest.mock import patch

from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, loops
from torch import nn
from torch.utils.data import DataLoader

from ..checks.ddp import find_outsiders, name_stale_graphs
from ..registry import LOOPS
from ..utils.training import get_rng_state, set_rng_state
from .distributed import unwrap_model


def batch_size_of(dataloader: Any) -> int | None:
    """Samples per batch, None if batches have no fixed size."""
    size = getattr(dataloader, 'batch_size', None)
    if size is None:
        size = getattr(dataloader.batch_sampler, 'batch_size', None)
    return size


def remaining_iterations(
    loop: EpochBasedTrainLoop | IterBasedTrainLoop,
    epoch: int,
    iteration: int,
    batch_in_epoch: int,
) -> int:
    """Iterations to come after a position of a loop."""
    if not isinstance(loop, EpochBasedTrainLoop):
        return loop.max_iters - iteration
    return (loop.max_epochs - epoch) * len(loop.dataloader) - batch_in_epoch


class SkippableBatches:
    """A sampler whose next pass can begin elsewhere than at its beginning.

    All other passes, and all attributes, are those of the sampler inside.
    """

    def __init__(self, inner: Iterable) -> None:
        self.inner = inner
        self._next_pass: Iterator | None = None

    def skip_next(self, num: int) -> None:
        """Let the next pass, and only that, leave out its first ``num``."""
        self.start_with(islice(iter(self.inner), num, None))

    def start_with(self, next_pass: Iterator) -> None:
        """Let the next pass, and only that, be this iterator."""
        self._next_pass = next_pass

    def __iter__(self) -> Iterator:
        # A generator, so that the pass is taken with its first item: a
        # loader with workers asks twice for an iterator and uses one.
        next_pass, self._next_pass = self._next_pass, None
        yield from self.inner if next_pass is None else next_pass

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        # Only called for what is not found; `inner` is absent in a copy that
        # is just being made.
        if name == 'inner':
            raise AttributeError(name)
        return getattr(self.inner, name)


def make_skippable(dataloader: DataLoader) -> SkippableBatches:
    """Give a loader an order that can be skipped into, and return that order.

    It is done on the loader itself, and not by a new one, since hooks and
    evaluators hold on to it. ``DataLoader`` refuses a new batch sampler, as
    it would not reach an iterator that is already running; here there must
    be none.
    """
    name = 'sampler' if dataloader.batch_sampler is None else 'batch_sampler'
    inner = getattr(dataloader, name)
    if isinstance(inner, SkippableBatches):
        return inner
    batches = SkippableBatches(inner)
    object.__setattr__(dataloader, name, batches)
    return batches


def set_sampler_epoch(dataloader: DataLoader, epoch: int) -> None:
    """Report the epoch, from 0, to a sampler that shuffles anew in each."""
    batch_sampler = dataloader.batch_sampler
    for sampler in (
        dataloader.sampler,
        getattr(batch_sampler, 'sampler', None),
    ):
        if hasattr(sampler, 'set_epoch'):
            sampler.set_epoch(epoch)
            return


def skip_batches(
    dataloader: DataLoader, batches: SkippableBatches, num: int
) -> int:
    """Begin an endless sequence of epochs after ``num`` >= 1 batches.

    The indices are drawn and dropped: only that shows how long an epoch is,
    which for an endless sampler is not ``len``. No data is read. At the end of
    an epoch the next pass is empty, so that its end is noticed as usual.
    Returns the epoch that the next pass is in, counted from 0.
    """
    epoch, rest = 0, num
    indices = iter(batches.inner)
    taken = sum(1 for _ in islice(indices, num))
    if taken < num:
        if taken == 0:
            raise ValueError('the sampler must have batches, got none')
        epoch, rest = divmod(num - 1, taken)
        set_sampler_epoch(dataloader, epoch)
        indices = islice(iter(batches.inner), rest + 1, None)
    batches.start_with(indices)
    return epoch


class _Resumable:
    """What both loops share."""

    # Batches of the current epoch that are trained.
    batch_in_epoch = 0
    # State to save while a validation is drawing numbers.
    rng_before_val: Mapping[str, Any] | None = None
    _rng_to_restore: Mapping[str, Any] | None = None
    _pending_val = False
    # Once: it takes a walk over the graph.
    _look = True

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

        ``batch_in_epoch`` batches of the epoch in progress are trained;
        ``pending_val`` is a validation that was due here and not finished.
        """
        self._epoch = epoch
        self._iter = iteration
        self.batch_in_epoch = batch_in_epoch
        self._pending_val = pending_val
        self._rng_to_restore = rng_state

    def run_iter(self, *args: Any) -> None:
        """Train one batch, the last argument.

        Raises:
            StaleGraphError: If its loss depends on a graph that an earlier
                step built.
        """
        model, batch = unwrap_model(self.runner.model), args[-1]
        outsiders = nullcontext(())
        if self._look:
            self._look = False
            groups = self.runner.optim_wrapper.param_groups
            outsiders = find_outsiders(model, groups, batch)
        with name_stale_graphs(model, batch), outsiders as texts:
            super().run_iter(*args)
        for text in texts:
            print_log(
                f'Gradients add up that no optimizer uses: those of {text}. '
                'It is neither in the model nor in optim_wrapper: make it a '
                'parameter of the model, or detach what is computed of it',
                logger='current',
                level=logging.WARNING,
            )

    def _restore_rng(self) -> None:
        if self._rng_to_restore is not None:
            set_rng_state(self._rng_to_restore)
            self._rng_to_restore = None

    def _is_val_due(self, done: int, end: int) -> bool:
        """Whether a validation follows so many epochs, or iterations."""
        step = bisect(self.dynamic_milestones, done + 1)
        interval = self.dynamic_intervals[step - 1]
        return (
            self.runner.val_loop is not None
            and done >= self.val_begin
            and (done % interval == 0 or done == end)
        )

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
    """

    def is_val_due_after(self, iteration: int) -> bool:
        """Never: the end of an epoch, with its hooks, comes before."""
        return False

    def is_val_due_after_epoch(self, epoch: int) -> bool:
        """Whether a validation follows an epoch, counted from 1."""
        return self._is_val_due(epoch, self._max_epochs)

    def go_on_from(self, **position: Any) -> None:
        """Set the position; ends with the epochs, however long they are."""
        super().go_on_from(**position)
        self._max_iters = self._iter + remaining_iterations(
            self, self._epoch, self._iter, self.batch_in_epoch
        )

    def run(self) -> nn.Module:
        """Train; returns the model."""
        self.runner.call_hook('before_train')
        self._validate_if_pending()
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._decide_current_val_interval()
            if self.is_val_due_after_epoch(self._epoch):
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
        make_skippable(self.dataloader).skip_next(start)
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
    """Batches of one epoch after the other, in an endless row."""

    def __init__(self, loop: 'ResumableIterBasedTrainLoop') -> None:
        self.loop = loop
        self._current: Iterator | None = None
        self._epoch = 0

    def skip(self, num: int) -> None:
        """Leave out the first ``num``. Before the first is taken."""
        loader = self.loop.dataloader
        self._epoch = skip_batches(loader, make_skippable(loader), num)

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
    samplers and with those that end, and with any batch sampler. With
    ``fast_forward_on_resume`` the data begin anew on resume.
    """

    def __init__(
        self, *args: Any, fast_forward_on_resume: bool = False, **kwargs: Any
    ) -> None:
        # The original MMEngine starts the workers here. A second pass over
        # an endless sampler, in `run`, would then be empty.
        with patch.object(
            loops, '_InfiniteDataloaderIterator', lambda _: None
        ):
            super().__init__(*args, **kwargs)
        self.fast_forward_on_resume = fast_forward_on_resume

    def is_val_due_after(self, iteration: int) -> bool:
        """Whether a validation follows an iteration, counted from 1."""
        return self._is_val_due(iteration, self._max_iters)

    def run(self) -> nn.Module:
        """Train; returns the model."""
        self.dataloader_iterator = _EndlessBatches(self)
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
