"""Count the gradients of each step; trace a step whose counts are wrong."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from itertools import chain
from operator import is_
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from ...checks.ddp import (
    SyncSettings,
    accumulator_of,
    graph_leaves,
    sparse_parameters,
    trace_step,
    trainable_tensors,
)
from ...checks.findings import ErrorCatcher
from ...utils.torch_compat import autocast_dtype
from .report import RankReport


class Lack(IntEnum):
    """What is wrong with the gradients of a step; the largest counts."""

    ALL = 0
    SOME = 1
    OTHER = 2


class _Tree:
    """What the modules of a model hold, to see soon whether that changes."""

    def __init__(
        self, module: nn.Module, is_known: Callable[[str, nn.Parameter], bool]
    ) -> None:
        self._dicts = [
            held
            for item in module.modules()
            for held in (item._modules, item._parameters)
        ]
        self._sizes = list(map(len, self._dicts))
        self._values = [held.values() for held in self._dicts if held]
        self._held = list(chain.from_iterable(self._values))
        self._others = [
            p for n, p in module.named_parameters() if not is_known(n, p)
        ]

    def is_unchanged(self) -> bool:
        """Whether it holds the same, and none of the others is trained."""
        # In every step, so without a line of Python for each module.
        return (
            list(map(len, self._dicts)) == self._sizes
            and all(map(is_, chain.from_iterable(self._values), self._held))
            and not any(parameter.requires_grad for parameter in self._others)
        )


def _note(ready: list, parameter: nn.Parameter, *_: Any) -> None:
    """Hook of the function that adds up the gradient of a parameter."""
    ready.append(parameter)


class GradientCheck:
    """What one process knows about the gradients of its steps.

    Hooks count how often the gradient of a parameter was ready: of those that
    need gradients now. ``ignored`` are the names that DDP leaves alone.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: SyncSettings,
        ignored: Iterable[str] = (),
    ) -> None:
        self._module = module
        self._settings = settings
        self._ignored = frozenset(ignored)
        named = [
            (name, parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and name not in self._ignored
        ]
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        # PyTorch leaves the search out with a static graph.
        self._searches = (
            settings.find_unused_parameters and not settings.static_graph
        )
        self._known = {id(parameter) for parameter in self._parameters}
        self._known |= {
            id(parameter)
            for name, parameter in module.named_parameters()
            if name in self._ignored
        }
        self._tree = _Tree(module, self._is_known)
        # A parameter for each time that its gradient was ready in this step,
        # and how many were in the steps before.
        self._ready: list[nn.Parameter] = []
        self._before = 0
        self._accumulators = [accumulator_of(p) for p in self._parameters]
        for function, parameter in zip(self._accumulators, self._parameters):
            function.register_hook(partial(_note, self._ready, parameter))
        # Embeddings whose gradients are sparse; those that a forward has left
        # out.
        sparse = sparse_parameters(module, dict(named))
        self._tables = {n: p for n, p in named if n in sparse}
        self._left_out: tuple[str, ...] = ()
        self._first_counts: list[int] | None = None
        self._call: Callable[[], Any] | None = None
        # What had been counted when all gradients were last averaged.
        self._averaged = 0
        self.num_steps = 0

    def begin(self, device: str, inputs: tuple, kwargs: dict) -> None:
        """Begin a step, and keep its input in case it has to be traced."""
        self._reset()
        dtype = autocast_dtype(device)
        enabled = dtype is not None

        def call() -> Any:
            with torch.autocast(device, dtype=dtype, enabled=enabled):
                return self._module(*inputs, **kwargs)

        self._call = call

    def end_forward(self, outputs: Any) -> None:
        """The forward has returned: from here on DDP listens.

        Gradients of a backward in the forward are averaged with those that
        come, of which there must be one of each parameter all the same. The
        first step of a static graph counts them, too.
        """
        if self.num_steps or not self._settings.static_graph:
            self._reset()
        if self._tables and self._searches:
            used = graph_leaves(trainable_tensors(outputs))
            self._left_out = tuple(
                n for n, p in self._tables.items() if id(p) not in used
            )

    def absent_tables(self) -> tuple[str, ...]:
        """Embeddings for which DDP ends the backward of a step in an error.

        It takes a sparse gradient of an earlier backward for one of this.
        """
        return tuple(n for n in self._left_out if self._tables[n].grad is None)

    def _reset(self) -> None:
        self._before += len(self._ready)
        self._ready.clear()

    def is_dirty(self) -> bool:
        """Whether gradients were added after they had been averaged."""
        return self._before + len(self._ready) != self._averaged

    def knows_any(self, parameters: Iterable[Tensor]) -> bool:
        """Whether any was the module's, or ignored, when it was wrapped."""
        return not self._known.isdisjoint(map(id, parameters))

    def settle(self) -> None:
        """What was counted so far is the same in all processes."""
        self._averaged = self._before + len(self._ready)

    def has_counted(self) -> bool:
        """Whether any gradient was ready in this step."""
        return bool(self._ready)

    def has_gradients(self) -> bool:
        """Whether there is anything for an optimizer to use."""
        return any(p.grad is not None for p in self._module.parameters())

    def lacks(self) -> Lack:
        """What is missing, which a further backward of the step may bring."""
        _, twice = self._wrong_counts()
        if twice or self.absent_tables() or self._unknown():
            return Lack.OTHER
        return Lack.SOME if self.has_counted() else Lack.ALL

    def forget_input(self) -> None:
        """Let the memory of the input go."""
        self._call = None

    def is_wrong(self) -> bool:
        """Whether the gradients of a finished backward cannot be averaged."""
        # In every step: parameters are counted one by one only if need be.
        different = len(set(map(id, self._ready)))
        in_order = different == len(self._ready) and (
            self._settings.find_unused_parameters
            or different == len(self._parameters)
        )
        is_settled = in_order and not (
            self._settings.static_graph or self._left_out
        )
        if not is_settled and any(self._wrong_counts()):
            return True
        return bool(self._unknown())

    def finish_step(self, *, log: bool) -> None:
        """A step is in order; log what the first one did not use."""
        self.settle()
        self.num_steps += 1
        if self.num_steps > 1 or not log:
            return
        unused = self._select(lambda count: count == 0)
        if unused:
            print_log(
                f'{len(unused)} parameter(s) without gradient in the first '
                f'step, which {self._settings} allows: {", ".join(unused)}',
                'current',
            )

    def _counts(self) -> list[int]:
        """How often the gradient of each parameter was ready."""
        counts = Counter(map(id, self._ready))
        return [counts[id(parameter)] for parameter in self._parameters]

    def _select(self, condition: Callable[[int], bool]) -> tuple[str, ...]:
        """Names whose count fulfils a condition."""
        return tuple(
            name
            for name, count in zip(self._names, self._counts())
            if condition(count)
        )

    def _unknown(self) -> tuple[str, ...]:
        """Trainable parameters that are not counted, so not averaged."""
        # In every step: names are looked up only if there may be any.
        if self._tree.is_unchanged():
            return ()
        self._tree = _Tree(self._module, self._is_known)
        return tuple(
            name
            for name, parameter in self._module.named_parameters()
            if parameter.requires_grad and not self._is_known(name, parameter)
        )

    def _is_known(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether DDP averages a parameter, or was told to leave it alone.

        The latter is told by names, also of parameters that come later.
        """
        return id(parameter) in self._known or name in self._ignored

    def _wrong_counts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parameters with too few and with too many gradients."""
        if self._settings.static_graph:
            counts = self._counts()
            self._first_counts = self._first_counts or counts
            if counts != self._first_counts:
                return self._changed(counts)
            unused = self._select(lambda count: count == 0)
            self._left_out = tuple(n for n in unused if n in self._tables)
            return self.absent_tables(), ()
        missing = self.absent_tables()
        if not self._searches:
            missing = self._select(lambda count: count == 0)
        return missing, self._select(lambda count: count > 1)

    def _changed(
        self, counts: Sequence[int]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parameters used less and more often than in the first step."""
        pairs = list(zip(self._names, counts, self._first_counts))
        return (
            tuple(name for name, now, then in pairs if now < then),
            tuple(name for name, now, then in pairs if now > then),
        )

    def report(self, rank: int, error: str) -> RankReport:
        """Explain a step by running it a second time.

        The hooks of DDP's reducer must be off by then. ``error`` is the
        reducer's, if it ended the backward.
        """
        # An error in the middle of a backward leaves counts unfinished.
        missing, twice = ((), ()) if error else self._wrong_counts()
        unfrozen = self._unknown()
        frozen = tuple(
            name
            for name, parameter in zip(self._names, self._parameters)
            if not parameter.requires_grad
        )
        usage, trace_error = None, ''
        failures: list[Exception] = []
        with ErrorCatcher(failures.append):
            if self._call is None:
                raise RuntimeError('its input is gone')
            # Other processes are elsewhere: nothing may wait for them.
            with local_collectives():
                usage = trace_step(self._module, self._call, self._loss_of)
        for failure in failures:
            trace_error = (
                'The step could not be run again for the reasons: '
                f'{type(failure).__name__}: {failure}'
            )
        if usage is not None and error and self._first_counts is not None:
            counts = usage.counts()
            missing, twice = self._changed(
                [counts.get(name, 0) for name in self._names]
            )
        return RankReport(
            rank=rank,
            usage=usage,
            missing=missing,
            twice=twice,
            unfrozen=unfrozen,
            used_before=frozenset(self._names if self.num_steps else ()),
            frozen=frozen,
            error=error,
            trace_error=trace_error,
        )

    def _loss_of(self, outputs: Any) -> Tensor:
        """The scalar that was differentiated, as far as can be known."""
        if hasattr(self._module, 'parse_losses'):
            return self._module.parse_losses(outputs)[0]
        return sum(tensor.sum() for tensor in trainable_tensors(outputs))


# Collectives in one process of many, alone -----------------------------------


@contextmanager
def local_collectives() -> Iterator[None]:
    """Answer the collectives of ``torch.distributed`` without others.

    When a step is run again to explain why it failed, one process may have
    begun a reduction that another one never will. A forward that averages a
    number over all processes would wait for ever. Here every process is taken
    to have the same values as this one.

    Applies to calls as ``torch.distributed.all_reduce(...)``, which is what
    MMEngine, its libraries and SyncBatchNorm do.
    """
    saved = [
        (module, name, getattr(module, name))
        for module in (dist, c10d)
        for name in _LOCAL
        if hasattr(module, name)
    ]
    try:
        for module, name, _ in saved:
            setattr(module, name, _LOCAL[name])
        yield
    finally:
        for module, name, function in saved:
            setattr(module, name, function)


class _Done:
    """A work handle of something that is finished."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _keep(*args: Any, async_op: bool = False, **kwargs: Any) -> _Done | None:
    """A collective that leaves the values of a process as they are."""
    return _Done() if async_op else None


def _all_reduce(
    tensor: Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> _Done | None:
    if op == dist.ReduceOp.SUM:
        tensor.mul_(dist.get_world_size(group))
    return _keep(async_op=async_op)


def _all_gather(
    tensor_list: list[Tensor],
    tensor: Tensor,
    group: Any = None,
    async_op: bool = False,
) -> _Done | None:
    for target in tensor_list:
        target.copy_(tensor)
    return _keep(async_op=async_op)


def _all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Any = None,
    async_op: bool = False,
) -> _Done | None:
    parts = output_tensor.view(dist.get_world_size(group), -1)
    parts.copy_(input_tensor.reshape(1, -1).expand_as(parts))
    return _keep(async_op=async_op)


def _all_gather_object(
    object_list: list, obj: Any, group: Any = None, **kwargs: Any
) -> None:
    object_list[:] = [obj] * len(object_list)


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError('a collective of its forward needs another process')


_LOCAL = {
    'all_reduce': _all_reduce,
    'all_gather': _all_gather,
    'all_gather_into_tensor': _all_gather_into_tensor,
    'all_gather_object': _all_gather_object,
    **dict.fromkeys(
        ('barrier', 'broadcast', 'broadcast_object_list', 'reduce'), _keep
    ),
    # There is no answer to give, or nobody has asked for one.
    **dict.fromkeys(
        (
            'send',
            'recv',
            'isend',
            'irecv',
            'batch_isend_irecv',
            'reduce_scatter_tensor',
        ),
        _refuse,
    ),
}
