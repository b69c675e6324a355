"""End the processes of data loaders while all their parts are alive.

The garbage collector takes the parts of a loader that an error or a runner
keeps in a cycle in any order; without its queues a loader waits five seconds
for each process.
"""

from typing import Any
from weakref import WeakSet

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

_started: WeakSet = WeakSet()
_init = _MultiProcessingDataLoaderIter.__init__


def _init_and_note(self: Any, *args: Any, **kwargs: Any) -> None:
    _started.add(self)
    _init(self, *args, **kwargs)


_MultiProcessingDataLoaderIter.__init__ = _init_and_note


def shut_down_loaders() -> None:
    """End the processes of all loaders started since this was imported."""
    for loader in list(_started):
        loader._shutdown_workers()
    _started.clear()
