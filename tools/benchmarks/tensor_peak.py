"""Count the bytes of the tensors that a piece of code has alive at once."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested containers, as operators take and give them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class TensorPeak(TorchDispatchMode):
    """Bytes of live storages, of those that operators made inside of it.

    A storage counts from the operator that returned it until it is freed, in
    forward and in backward, on any device, ``meta`` included. One that an
    operator was given before any has returned it is older than the block, or
    was made by no operator; it does not count. What a kernel allocates and
    frees inside of one operator does not count, either.

    Args:
        leave_out: Tensors whose storages do not count in any case, for
            instance gradients of the parameters.

    Attributes:
        now: Bytes at present.
        peak: Most bytes so far.

    Examples:
        >>> import torch
        >>> x = torch.ones(256)
        >>> with TensorPeak() as memory:
        ...     y = x.view(16, 16) + 1
        ...     z = (y * 2).sum()
        >>> memory.peak, memory.now
        (2052, 1028)
    """

    def __init__(self, leave_out: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        # A storage has one Python object as long as it lives.
        self._known: dict[int, weakref.ref] = {}
        for tensor in leave_out:
            self._note(tensor, counts=False)

    def _note(self, tensor: Tensor, counts: bool) -> None:
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

    def __torch_dispatch__(
        self,
        func: Callable,
        types: Iterable[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run an operator and note what it was given and what it returned."""
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            self._note(tensor, counts=False)
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            self._note(tensor, counts=True)
        return result


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
