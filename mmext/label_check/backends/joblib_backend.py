"""Read files in processes of this machine, by joblib's process pool."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor

from ..work import Result, WorkItem, read_batch
from ._in_flight import run_in_flight

__all__ = ['run']


def run(
    batches: Iterable[Sequence[WorkItem]],
    *,
    workers: int = 0,
    in_flight: int = 0,
) -> Iterator[list[Result]]:
    """Read batches in processes that are started once.

    ``joblib.Parallel`` itself gives up when a process dies, and puts no
    bound on results that nobody has taken yet; so its pool, loky, is used
    directly. Processes, as decoding in threads waits for the interpreter
    lock wherever a decoder does not let go of it.

    Args:
        batches: Asked for one at a time, in the thread of the caller.
        workers: Processes; 0 for one each CPU that this process may use.
        in_flight: Batches at work; 0 for two each process.

    Yields:
        Results of each batch, as they become ready. The batches of a
        process that died are read again.

    Raises:
        ValueError: If ``workers`` or ``in_flight`` is negative.
    """
    if workers < 0 or in_flight < 0:
        raise ValueError(
            'workers and in_flight must be at least 0, got '
            f'{workers} and {in_flight}'
        )
    workers = workers or cpu_count()

    pool = None

    def submit(batch: Sequence[WorkItem]) -> Future:
        nonlocal pool
        # A new pool if the last one broke, else the same.
        pool = get_reusable_executor(max_workers=workers)
        return pool.submit(read_batch, batch)

    complete = False
    try:
        yield from run_in_flight(
            batches, submit, limit=in_flight or 2 * workers
        )
        complete = True
    finally:
        if not complete and pool is not None:
            pool.shutdown(wait=True, kill_workers=True)
