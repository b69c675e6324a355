"""Read files on a Dask cluster that is running already."""

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec

from ..work import Result, WorkItem, read_batch
from ._in_flight import run_in_flight

__all__ = ['run']


def run(
    batches: Iterable[Sequence[WorkItem]],
    *,
    scheduler: str,
    in_flight: int = 0,
) -> Iterator[list[Result]]:
    """Read batches on the workers of a Dask scheduler.

    The workers need mmext, and the files under the same paths. The batches
    of a worker that died are run again by the scheduler, or, once it gives
    up on a batch, as in :mod:`._in_flight`.

    Args:
        batches: Asked for one at a time, in the thread of the caller.
        scheduler: Address, such as ``'tcp://10.0.0.1:8786'``.
        in_flight: Batches at work; 0 for three each thread of the cluster.

    Yields:
        Results of each batch, as they become ready.

    Raises:
        ImportError: If Dask is not installed.
        OSError: If no scheduler answers there.
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
