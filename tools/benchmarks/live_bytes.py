"""Count bytes of tensors that are alive at once."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class LiveBytes:
    """Bytes of distinct storages, from when they are noted until they die.

    Args:
        leave_out: Tensors whose storages do not count.

    Attributes:
        now: Bytes at present.
        peak: Most bytes so far.

    Raises:
        RuntimeError: With PyTorch 2.1, where a weak reference to a storage
            ends the process in the next garbage collection.
    """

    def __init__(self, leave_out: Iterable[Tensor] = ()) -> None:
        if torch.__version__ < (2, 2):
            raise RuntimeError(
                'torch must be 2.2 or newer to count the bytes of tensors, '
                f'got {torch.__version__}: its storages have no weak '
                'references'
            )
        super().__init__()
        self.now = self.peak = 0
        # A storage has one Python object as long as it lives.
        self._known: dict[int, weakref.ref] = {}
        for tensor in leave_out:
            self._note(tensor, counts=False)

    def _note(self, tensor: Tensor, counts: bool = True) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes() if counts else 0
        if key in self._known:
            return

        def gone(_: weakref.ref) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


class SavedBytes(LiveBytes):
    """Counts what autograd keeps between forward and backward.

    Inside of :meth:`counting`, each tensor that a pack hook returns counts,
    be it the hook that is set here or one of a checkpoint: in the first run
    of a non-reentrant one it returns no tensor, in the second one it does.

    Args:
        module: Its parameters and buffers do not count.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__([*module.parameters(), *module.buffers()])

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


class TensorPeak(LiveBytes, TorchDispatchMode):
    """Counts what operators make inside of it.

    A storage that an operator was given before any has returned it is older
    than the block, and does not count; nor does what a kernel allocates and
    frees inside of one operator. It counts what a program really does on a
    CPU, such as with kernels of numba, which run on no other device.

    Examples:
        >>> import torch
        >>> x = torch.ones(256)
        >>> with TensorPeak() as memory:
        ...     y = x.view(16, 16) + 1
        ...     z = (y * 2).sum()
        >>> memory.peak, memory.now
        (2052, 1028)
    """

    def __torch_dispatch__(
        self,
        func: Callable,
        types: Iterable[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run an operator and note what it was given and what it returned."""
        kwargs = kwargs or {}
        self._note_all((args, kwargs), counts=False)
        result = func(*args, **kwargs)
        self._note_all(result, counts=True)
        return result

    def _note_all(self, values: Any, counts: bool) -> None:
        for value in tree_flatten(values)[0]:
            if isinstance(value, Tensor):
                self._note(value, counts)


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Most bytes in use during a run.

    On CUDA those of PyTorch's allocator, with what was there before; on a CPU
    those of :class:`TensorPeak`, without.
    """
    if device.type != 'cuda':
        with TensorPeak() as memory:
            run()
        return memory.peak
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device)
