"""Run batches of files: in this process, in others, or on a cluster.

Each backend takes batches, asked for one at a time in the thread of the
caller, and yields the results of each batch as they become ready.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    wait,
)
from importlib.util import find_spec
from itertools import chain, islice

from .facts import ErrorKind, ReadError
from .work import Result, WorkItem, failed_result, read_batch

__all__ = ['run_dask', 'run_in_flight', 'run_joblib', 'run_serial']

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
    gets facts with an error. ``submit`` must work again after a worker has
    died; ``lost`` is what a future raises if its worker died.
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
                text = _DIED + type(error).__name__
                error = ReadError(ErrorKind.UNAVAILABLE, text)
                yield [failed_result(batch[0], error)]
        else:
            yield results
            return
    if len(batch) > 1:
        middle = len(batch) // 2
        yield from _alone(batch[:middle], submit, lost)
        yield from _alone(batch[middle:], submit, lost)


def run_joblib(
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
    """
    if workers < 0 or in_flight < 0:
        raise ValueError(
            'workers and in_flight must be at least 0, got '
            f'{workers} and {in_flight}'
        )
    # Not at the top: the processes that read do not need it.
    from joblib import cpu_count
    from joblib.externals.loky import get_reusable_executor

    # A process takes half a second to start: no more than there is to do.
    batches = iter(batches)
    first = list(islice(batches, workers or cpu_count()))
    workers = max(len(first), 1)

    pool = None

    def submit(batch: Sequence[WorkItem]) -> Future:
        nonlocal pool
        # A new pool if the last one broke, else the same.
        pool = get_reusable_executor(max_workers=workers)
        return pool.submit(read_batch, batch)

    complete = False
    try:
        yield from run_in_flight(
            chain(first, batches), submit, limit=in_flight or 2 * workers
        )
        complete = True
    finally:
        if not complete and pool is not None:
            pool.shutdown(wait=True, kill_workers=True)


def run_dask(
    batches: Iterable[Sequence[WorkItem]],
    *,
    scheduler: str,
    in_flight: int = 0,
) -> Iterator[list[Result]]:
    """Read batches on the workers of a Dask scheduler.

    The workers need mmext, and the files under the same paths. The batches
    of a worker that died are run again by the scheduler, or, once it gives
    up on a batch, as in :func:`run_in_flight`.
    """
    if find_spec('distributed') is None:
        raise ImportError(
            "backend 'dask' needs the package distributed: "
            "pip install 'mmext[dask]'"
        )
    from distributed import Client
    from distributed.scheduler import KilledWorker

    with Client(scheduler, set_as_default=False) as client:
        threads = sum(client.nthreads().values())
        # Without `pure`, a batch that is run again is not taken for the
        # same call as the one that failed.
        pool = client.get_executor(pure=False)
        yield from run_in_flight(
            batches,
            lambda batch: pool.submit(read_batch, batch),
            limit=in_flight or 3 * max(threads, 1),
            lost=(KilledWorker,),
        )


def run_serial(
    batches: Iterable[Sequence[WorkItem]],
) -> Iterator[list[Result]]:
    """Read batches one after the other, in the order given."""
    return map(read_batch, batches)
