"""Read files in this process."""

from collections.abc import Iterable, Iterator, Sequence

from ..work import Result, WorkItem, read_batch

__all__ = ['run']


def run(batches: Iterable[Sequence[WorkItem]]) -> Iterator[list[Result]]:
    """Read batches one after the other, in the order given.

    Args:
        batches: Asked for one at a time.

    Yields:
        Results of each batch.
    """
    return map(read_batch, batches)
