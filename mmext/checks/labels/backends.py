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
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice

from .work import Result, WorkItem, read_batch

Batch = Sequence[WorkItem]


def choose_backend(
    workers: int, scheduler: str | None
) -> Callable[[Iterable[Batch]], Iterator[list[Result]]]:
    """The function that reads batches, its options bound."""
    if workers < 0:
        raise ValueError(f'--workers must be at least 0, got {workers}')
    if scheduler:
        return partial(run_dask, scheduler=scheduler)
    if workers == 1:
        return run_serial
    return partial(run_joblib, workers=workers)


def run_in_flight(
    batches: Iterable[Batch],
    submit: Callable[[Batch], Future],
    *,
    limit: int,
    lost: type[BaseException] = BrokenExecutor,
) -> Iterator[list[Result]]:
    """Submit batches, no more than ``limit`` at a time.

    A future raises ``lost`` if a worker died. It is not known which of the
    batches at work it read, so all of them are named.
    """
    batches = iter(batches)
    batch: Batch = ()
    waiting: dict[Future, Batch] = {}
    try:
        while True:
            for batch in islice(batches, limit - len(waiting)):
                waiting[submit(batch)] = batch
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            # What is good is stored before an error ends the run.
            for future in sorted(
                done, key=lambda f: f.cancelled() or f.exception() is not None
            ):
                results = future.result()
                del waiting[future]
                yield results
    except (lost, CancelledError) as error:
        at_work = list(waiting.values()) or [batch]
        raise ChildProcessError(_died(at_work, error)) from error
    finally:
        for future in waiting:
            future.cancel()


def _died(batches: Sequence[Batch], error: BaseException) -> str:
    files = [item.path for batch in batches for item in batch]
    return (
        f'a worker process died ({type(error).__name__}) while it read one of '
        f'{len(files)} files, from {files[0]!r} to {files[-1]!r}. If the '
        'system stopped it for lack of memory, use fewer workers or more '
        'memory; if a worker dies of these files again, one of them is the '
        'cause: take it out of the data set. What has been read is stored: '
        'the same command goes on from there'
    )


def run_joblib(
    batches: Iterable[Sequence[WorkItem]],
    *,
    workers: int = 0,
    in_flight: int = 0,
) -> Iterator[list[Result]]:
    """Read batches in processes that are started once.

    ``joblib.Parallel`` itself puts no bound on results that nobody has taken
    yet; so its pool, loky, is used directly. Processes, as decoding in
    threads waits for the interpreter lock wherever a decoder does not let go
    of it.
    """
    # Not at the top: the processes that read do not need it.
    from joblib import cpu_count
    from joblib.externals.loky import get_reusable_executor

    # A process takes half a second to start: no more than there is to do.
    batches = iter(batches)
    first = list(islice(batches, workers or cpu_count()))
    workers = max(len(first), 1)
    pool = get_reusable_executor(max_workers=workers)
    complete = False
    try:
        yield from run_in_flight(
            chain(first, batches),
            partial(pool.submit, read_batch),
            limit=in_flight or 2 * workers,
        )
        complete = True
    finally:
        if not complete:
            pool.shutdown(wait=True, kill_workers=True)


def run_dask(
    batches: Iterable[Sequence[WorkItem]],
    *,
    scheduler: str,
    in_flight: int = 0,
) -> Iterator[list[Result]]:
    """Read batches on the workers of a Dask scheduler.

    The workers need mmext, and the files under the same paths. The scheduler
    runs the batches of a worker that died again; once it gives up on a batch,
    the run ends as in :func:`run_in_flight`.
    """
    if find_spec('distributed') is None:
        raise ImportError(
            '--scheduler needs the package distributed: '
            "pip install 'mmext[dask]'"
        )
    from distributed import Client
    from distributed.scheduler import KilledWorker

    with Client(scheduler, set_as_default=False) as client:
        threads = sum(client.nthreads().values())
        # Without `pure`, a batch is not taken for the same one of another
        # check.
        pool = client.get_executor(pure=False)
        yield from run_in_flight(
            batches,
            partial(pool.submit, read_batch),
            limit=in_flight or 3 * max(threads, 1),
            lost=KilledWorker,
        )


def run_serial(
    batches: Iterable[Sequence[WorkItem]],
) -> Iterator[list[Result]]:
    """Read batches one after the other, in the order given."""
    return map(read_batch, batches)
