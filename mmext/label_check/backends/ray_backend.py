"""Read files on a Ray cluster."""

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec

from ..work import Result, WorkItem, read_batch
from ._in_flight import run_in_flight

__all__ = ['run']


def run(
    batches: Iterable[Sequence[WorkItem]],
    *,
    address: str = 'auto',
    in_flight: int = 0,
) -> Iterator[list[Result]]:
    """Read batches as Ray tasks of one CPU each.

    Ray runs the task of a worker that died three times more; after that it
    is run as in :mod:`._in_flight`.

    Args:
        batches: Asked for one at a time, in the thread of the caller.
        address: Of the cluster; ``'auto'`` finds the one of this machine,
            ``'local'`` starts one. Not looked at where Ray is connected.
        in_flight: Batches at work; 0 for three each CPU of the cluster.

    Yields:
        Results of each batch, as they become ready.

    Raises:
        ImportError: If Ray is not installed.
        ConnectionError: If there is no cluster at ``address``.
    """
    if find_spec('ray') is None:
        raise ImportError(
            "backend 'ray' needs the package ray: pip install 'mmext[ray]'"
        )
    import ray

    ours = not ray.is_initialized()
    if ours:
        ray.init(address=address)
    try:
        task = ray.remote(num_cpus=1, max_retries=3)(read_batch)
        cpus = int(ray.cluster_resources().get('CPU', 1))
        yield from run_in_flight(
            batches,
            lambda batch: task.remote(batch).future(),
            limit=in_flight or 3 * max(cpus, 1),
            lost=(
                ray.exceptions.WorkerCrashedError,
                ray.exceptions.NodeDiedError,
            ),
        )
    finally:
        if ours:
            ray.shutdown()
