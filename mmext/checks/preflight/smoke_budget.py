"""Time and memory that a smoke run may take.

The first training step has a small batch. Its seconds, and the bytes that
autograd saves in it, for each pixel, say what larger batches need.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..ddp import all_tensors

# Share of the time that all batches of a split but the first may take.
_SHARE = 1 / 3
# Time and memory of a prediction, relative to a training step.
_TIME_OF_STEP, _MEMORY_OF_STEP = 0.4, 0.15
# Bytes that autograd may save in a step; weights come on top.
_MAX_SAVED = 5 << 29
_GIB = 1 << 30


class Budget:
    """Seconds of a processor that are left, and the memory of a batch.

    The time is that of this thread: neither other programs nor the number of
    threads change what is run.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.thread_time() + seconds
        # Of each split: seconds for a pixel, and all seconds so far.
        self._pace: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        # Bytes that autograd saves for a pixel, and those of each storage.
        self._saved = 0.0
        self._sizes: dict[int, int] = {}
        self._counter = ExitStack()
        self._begun = 0.0
        self._is_free = False

    @property
    def left(self) -> float:
        """Seconds."""
        return max(self._end - time.thread_time(), 0.0)

    @contextmanager
    def free(self) -> Iterator[None]:
        """What runs inside is neither refused nor counted."""
        start, self._is_free = time.thread_time(), True
        try:
            yield
        finally:
            self._is_free = False
            self._end += time.thread_time() - start

    def begin_step(self, split: str, model: nn.Module) -> None:
        """Start the clock, and in the first training step count bytes."""
        self._begun = time.thread_time()
        if split == 'train' and not self._saved:
            own = {tensor.data_ptr() for tensor in model.parameters()}

            def pack(tensor: Tensor) -> Tensor:
                if tensor.layout is torch.strided:
                    storage = tensor.untyped_storage()
                    if storage.data_ptr() not in own:
                        self._sizes[storage.data_ptr()] = storage.nbytes()
                # The tensor itself would keep the graph that it is part of.
                return tensor.detach()

            self._counter.enter_context(
                torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
            )

    def end_step(self, split: str, batch: Any) -> None:
        """Note what a batch took."""
        seconds, pixels = time.thread_time() - self._begun, _pixels(batch)
        self._spent[split] = self._spent.get(split, 0.0) + seconds
        if pixels:
            self._pace[split] = seconds / pixels
            if split == 'train' and not self._saved:
                self._saved = sum(self._sizes.values()) / pixels
        self.close()

    def close(self) -> None:
        """Count no longer."""
        self._counter.close()

    def why_not(self, split: str, batch: Any, is_first: bool) -> str:
        """Why a batch is not run, in words; empty if it fits."""
        if self._is_free:
            return ''
        pixels, left = _pixels(batch), self.left
        pace = self._pace.get(split)
        memory = self._saved * pixels
        if split != 'train':
            pace = pace or self._pace.get('train', 0.0) * _TIME_OF_STEP
            memory *= _MEMORY_OF_STEP
        seconds = (pace or 0.0) * pixels
        if not is_first:
            share = self.seconds * _SHARE - self._spent.get(split, 0.0)
            left = max(min(left, share), 0.0)
        if seconds > left:
            return (
                f'a batch takes about {seconds:.0f} s, and {left:.0f} s are '
                'left of --miniature'
            )
        if memory > _MAX_SAVED:
            return (
                f'a batch takes about {memory / _GIB:.1f} GiB, and a smoke '
                f'run takes {_MAX_SAVED / _GIB:g} GiB at most'
            )
        return ''


def _pixels(batch: Any) -> int:
    """Pixels of the images of a batch, with their padding."""
    inputs = batch.get('inputs') if isinstance(batch, Mapping) else batch
    images = [t for t in all_tensors(inputs) if t.dim() > 2]
    if not images:
        return 0
    height = max(image.shape[-2] for image in images)
    width = max(image.shape[-1] for image in images)
    # Some are stacked.
    count = sum(t.numel() // t.shape[-2:].numel() for t in images)
    return count * height * width
