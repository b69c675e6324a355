"""Keep a bounded number of batches at work, and run lost ones again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    wait,
)
from itertools import islice

from ..work import Result, WorkItem, failed_result

__all__ = ['run_in_flight']

Batch = Sequence[WorkItem]
Submit = Callable[[Batch], Future]
_DIED = 'cannot be read: a worker died twice while it read this file alone: '


def run_in_flight(
    batches: Iterable[Batch],
    submit: Submit,
    *,
    limit: int,
    lost: tuple[type[BaseException], ...] = (BrokenExecutor,),
) -> Iterator[list[Result]]:
    """Submit batches, no more than ``limit`` at a time.

    A batch that was at work when a worker died is run again, alone, so that
    no other batch is at work beside it. If a worker dies of it then, its
    halves are run the same way, down to the file that workers die of, which
    gets facts with an error.

    Args:
        batches: Asked for one at a time, in the thread of the caller.
        submit: Starts a batch; must work again after a worker has died.
        limit: Batches at work, at least 1.
        lost: What a future raises if its worker died.

    Yields:
        Results of each batch, as they become ready.

    Raises:
        ValueError: If ``limit`` is below 1.
    """
    if limit < 1:
        raise ValueError(f'limit must be at least 1, got {limit}')
    lost = (*lost, CancelledError)
    batches = iter(batches)
    waiting: dict[Future, Batch] = {}
    suspects: list[Batch] = []
    try:
        while True:
            room = 0 if suspects else limit - len(waiting)
            for batch in islice(batches, room):
                try:
                    waiting[submit(batch)] = batch
                except lost:
                    suspects.append(batch)
                    break
            if waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    batch = waiting.pop(future)
                    try:
                        yield future.result()
                    except lost:
                        suspects.append(batch)
            elif suspects:
                yield from _alone(suspects.pop(), submit, lost)
            else:
                return
    finally:
        for future in waiting:
            future.cancel()


def _alone(
    batch: Batch, submit: Submit, lost: tuple[type[BaseException], ...]
) -> Iterator[list[Result]]:
    """Run a batch while no other is at work."""
    # A worker may also die of something else: one more chance for a file.
    for chance in range(2 if len(batch) == 1 else 1):
        try:
            results = submit(batch).result()
        except lost as error:
            if chance:
                yield [failed_result(batch[0], _DIED + type(error).__name__)]
        else:
            yield results
            return
    if len(batch) > 1:
        middle = len(batch) // 2
        yield from _alone(batch[:middle], submit, lost)
        yield from _alone(batch[middle:], submit, lost)
