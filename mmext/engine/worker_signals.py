"""Let data loading processes outlive signals that are for the main process.

A launcher, a batch system or a terminal sends its signals to all processes of
a group. A data loading process would end at once, and PyTorch raises an error
for that in the middle of the step that the main process is finishing.
"""

import atexit
import multiprocessing.util
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

__all__ = ['end_workers', 'protect_workers', 'start_worker']


class _IgnoreOnce:
    """Handler that takes only the second SIGTERM at its word.

    PyTorch sends one to a worker that hangs at the end, and Python another
    one, so such a worker still goes. A worker whose main process has gone
    notices that by itself.
    """

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, signum: int, frame: Any) -> None:
        if self.seen:
            os._exit(128 + signum)
        self.seen = True


@atexit.register
def end_workers() -> None:
    """End what data loading processes are left when Python exits.

    Python sends them one SIGTERM at that point, which they ignore, and then
    waits for them without a limit. Exit functions run in reverse order, so
    this one, registered after the one of ``multiprocessing``, comes first.
    """
    # PyTorch's handler would call the end of a worker an error.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


def start_worker(
    worker_id: int, init_fn: Callable[[int], None] | None = None
) -> None:
    """Set a data loading process up; runs in that process.

    Args:
        worker_id: Number of the worker.
        init_fn: What the loader would have called.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _IgnoreOnce())
    if init_fn is not None:
        init_fn(worker_id)


def protect_workers(dataloader: DataLoader) -> None:
    """Make the processes of a loader leave signals to the main process.

    Args:
        dataloader: It is changed: its ``worker_init_fn`` is wrapped.
    """
    init_fn = dataloader.worker_init_fn
    if not (isinstance(init_fn, partial) and init_fn.func is start_worker):
        dataloader.worker_init_fn = partial(start_worker, init_fn=init_fn)
