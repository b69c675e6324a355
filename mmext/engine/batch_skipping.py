"""Start a data loader in the middle of its order, without reading data."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

__all__ = [
    'SkippableBatches',
    'make_skippable',
    'set_sampler_epoch',
    'skip_batches',
]


class SkippableBatches:
    """A sampler whose next pass can begin elsewhere than at its beginning.

    All other passes, and all attributes, are those of the sampler inside.

    Args:
        inner: A batch sampler, or a sampler for a loader without batches.

    Examples:
        >>> batches = SkippableBatches([[3, 1], [2, 0], [4]])
        >>> batches.skip_next(2)
        >>> list(batches), list(batches), len(batches)
        ([[4]], [[3, 1], [2, 0], [4]], 3)
    """

    def __init__(self, inner: Iterable) -> None:
        self.inner = inner
        self._next_pass: Iterator | None = None

    def skip_next(self, num: int) -> None:
        """Let the next pass, and only that, leave out its first ``num``.

        Raises:
            ValueError: If ``num`` is negative.
        """
        if num < 0:
            raise ValueError(f'num must not be negative, got {num}')
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
    """Give a loader an order that can be skipped into.

    It is done on the loader itself, and not by a new one, since hooks and
    evaluators hold on to it. ``DataLoader`` refuses a new batch sampler, as
    it would not reach an iterator that is already running; here there must
    be none.

    Args:
        dataloader: A loader that was not iterated yet. It is changed.

    Returns:
        What is now its ``batch_sampler`` (``sampler``, without batches).
        The same one for a loader that was already changed.
    """
    name = 'sampler' if dataloader.batch_sampler is None else 'batch_sampler'
    inner = getattr(dataloader, name)
    if isinstance(inner, SkippableBatches):
        return inner
    batches = SkippableBatches(inner)
    object.__setattr__(dataloader, name, batches)
    return batches


def set_sampler_epoch(dataloader: DataLoader, epoch: int) -> None:
    """Tell the sampler, which shuffles anew in each epoch, the epoch.

    Args:
        dataloader: Any loader; one whose sampler has no ``set_epoch`` is left
            alone.
        epoch: Counted from 0.
    """
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
    """Begin an endless sequence of epochs after a number of batches.

    The indices are drawn and dropped: only that tells how long an epoch is,
    which for an endless sampler is not ``len``. No data is read.

    Args:
        dataloader: Loader of the batches.
        batches: What :func:`make_skippable` returned for it.
        num: Batches to leave out, one or more. At the end of an epoch the
            next pass is empty, so that its end is noticed as usual.

    Returns:
        The epoch that the next pass is in, counted from 0.

    Raises:
        ValueError: If the sampler has no batches at all.
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
