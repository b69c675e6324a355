"""Count the bytes that autograd keeps between forward and backward."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class SavedBytes:
    """Counts distinct storages that autograd has saved, while they live.

    Inside of :meth:`counting`, each tensor that a pack hook returns counts,
    be it the hook that is set here or one of a checkpoint: in the first run
    of a non-reentrant one it returns no tensor, in the second one it does.

    Args:
        module: Its parameters and buffers do not count.

    Attributes:
        now: Bytes at present.
        peak: Most bytes so far.
    """

    def __init__(self, module: nn.Module) -> None:
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref] = {}
        # A storage has one Python object as long as it lives.
        self._left_out = {
            id(tensor.untyped_storage())
            for tensors in (module.parameters(), module.buffers())
            for tensor in tensors
        }

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._known or key in self._left_out:
            return

        def gone(_: weakref.ref) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _noting(self, pack: Callable[[Tensor], Any]) -> Callable:
        def noting(tensor: Tensor) -> Any:
            try:
                packed = pack(tensor)
            except BaseException:
                # A second run ends so, at the last tensor that it needs.
                self._note(tensor)
                raise
            if isinstance(packed, Tensor):
                self._note(packed)
            return packed

        return noting

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count while forward and backward run."""
        plain = saved_tensors_hooks.__init__

        def init(
            hooks: saved_tensors_hooks, pack: Callable, unpack: Callable
        ) -> None:
            plain(hooks, self._noting(pack), unpack)

        with (
            mock.patch.object(saved_tensors_hooks, '__init__', init),
            # Not the tensor itself: the graph would hold itself.
            saved_tensors_hooks(Tensor.detach, lambda tensor: tensor),
        ):
            yield
