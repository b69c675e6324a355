"""Judge the gradients of a step, and explain what is wrong with them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from ..preflight import RankReport, StepUsage, SyncSettings, trace_step
from ..preflight._graph import tensors_in
from ..preflight._local_collectives import local_collectives
from ._gradient_counter import GradientCounter

__all__ = ['GradientCheck', 'trainable_tensors']

# What a second run of a step may end with; a lack of memory is a RuntimeError.
_TRACE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class GradientCheck:
    """What one process knows about the gradients of its steps.

    Args:
        module: The model, not wrapped.
        settings: What DDP is told.
        ignored: Names of parameters that DDP was told to leave alone.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: SyncSettings,
        ignored: Iterable[str] = (),
    ) -> None:
        self._module = module
        self._settings = settings
        self._counter = GradientCounter(module, ignored)
        self._first_counts: list[int] | None = None
        self._call: Callable[[], Any] | None = None
        self.num_steps = 0

    def begin(self, kind: str, inputs: tuple, kwargs: dict) -> None:
        """Begin a step, and note its input in case it has to be traced.

        Args:
            kind: Type of the device, to know the state of autocast.
            inputs: Of the forward.
            kwargs: Of the forward.
        """
        self._counter.reset()
        dtype = torch.get_autocast_dtype(kind)
        enabled = torch.is_autocast_enabled(kind)

        def call() -> Any:
            with torch.autocast(kind, dtype=dtype, enabled=enabled):
                return self._module(*inputs, **kwargs)

        self._call = call

    def forget_input(self) -> None:
        """Let the memory of the input go."""
        self._call = None

    def is_wrong(self) -> bool:
        """Whether the gradients of a finished backward cannot be averaged."""
        missing, twice = self._wrong_counts()
        return bool(missing or twice or self._counter.unknown())

    def finish_step(self, *, log: bool) -> None:
        """A step is in order.

        Args:
            log: Tell what had no gradient in the first step, if settings
                allow that.
        """
        self.num_steps += 1
        if self.num_steps > 1 or not log:
            return
        unused = self._counter.select(lambda count: count == 0)
        if unused:
            print_log(
                f'{len(unused)} parameter(s) without gradient in the first '
                f'step, which {self._settings} allows: {", ".join(unused)}',
                'current',
            )

    def _wrong_counts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parameters with too few and with too many gradients."""
        if self._settings.static_graph:
            counts = self._counter.counts()
            self._first_counts = self._first_counts or counts
            return self._changed(counts)
        missing = ()
        if not self._settings.find_unused_parameters:
            missing = self._counter.select(lambda count: count == 0)
        return missing, self._counter.select(lambda count: count > 1)

    def _changed(
        self, counts: Sequence[int]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parameters used less and more often than in the first step."""
        pairs = list(zip(self._counter.names, counts, self._first_counts))
        return (
            tuple(name for name, now, then in pairs if now < then),
            tuple(name for name, now, then in pairs if now > then),
        )

    def report(self, rank: int, error: str) -> RankReport:
        """Explain a step by running it a second time.

        The hooks of DDP's reducer must be off by then.

        Args:
            rank: Of this process.
            error: The reducer's error, if it ended the backward.
        """
        # An error in the middle of a backward leaves counts unfinished.
        missing, twice = ((), ()) if error else self._wrong_counts()
        unfrozen, frozen = self._counter.unknown(), self._counter.frozen()
        usage, note = None, ''
        try:
            usage = self._trace()
        except _TRACE_ERRORS as failure:
            note = (
                'The step could not be run again for the reasons: '
                f'{type(failure).__name__}: {failure}'
            )
        if usage is not None and error and self._first_counts is not None:
            counts = usage.counts()
            missing, twice = self._changed(
                [counts.get(name, 0) for name in self._counter.names]
            )
        used = self._counter.names if self.num_steps else ()
        return RankReport(
            rank=rank,
            usage=usage,
            missing=missing,
            twice=twice,
            unfrozen=unfrozen,
            used_before=frozenset(used),
            frozen=frozen,
            error=error,
            note=note,
        )

    def _trace(self) -> StepUsage:
        if self._call is None:
            raise RuntimeError('its input is gone')
        # Other processes are elsewhere: nothing in here may wait for them.
        with local_collectives():
            return trace_step(self._module, self._call, self._loss_of)

    def _loss_of(self, outputs: Any) -> Tensor:
        """The scalar that was differentiated, as far as can be known."""
        if hasattr(self._module, 'parse_losses'):
            return self._module.parse_losses(outputs)[0]
        return sum(tensor.sum() for tensor in trainable_tensors(outputs))


def trainable_tensors(outputs: Any) -> list[Tensor]:
    """Tensors of a result that a gradient can come from."""
    return [t for t in tensors_in(outputs) if t.requires_grad]
