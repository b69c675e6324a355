"""What DDP's reducer makes of a step, predicted without a process group.

The rules are those of PyTorch (``torch/csrc/distributed/c10d/reducer.cpp``):
in each step the reducer waits for one ready gradient of every parameter that
required gradients when the model was wrapped. It listens from the end of a
forward until it has all of them, and the backward pass ends in which the last
one came; gradients of before and after stay those of the process.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .ready_gradients import ReadyGradient
from .trace import StepUsage


@dataclass(frozen=True)
class SyncSettings:
    """The two settings that decide what DDP makes of a step.

    Attributes:
        find_unused_parameters: As DDP's; no effect with ``static_graph``.
        static_graph: As DDP's.
    """

    find_unused_parameters: bool = False
    static_graph: bool = False


class Outcome(str, Enum):
    """What happens to the gradients of a process."""

    OK = 'ok'
    UNFINISHED = 'a parameter has no gradient: error at the next forward'
    READY_TWICE = 'a parameter is marked ready twice: error in backward'
    DIVERGED = 'silently wrong: gradients of a process stay local'
    GRAPH_CHANGED = 'static_graph, and the graph has changed: error'
    UNEXPECTED = (
        'a gradient is sparse, dense or missing where DDP expects another: '
        'error in backward'
    )
    ACCUMULATED = 'static_graph, and nothing averaged yet: error in forward'
    REFUSED = 'DDP refuses the model when it is wrapped: error'


@dataclass(frozen=True)
class Prediction:
    """The first thing that goes wrong.

    Attributes:
        outcome: What happens.
        step: Index of the step that is the cause; 0 if nothing goes wrong.
        names: The parameters concerned.
    """

    outcome: Outcome
    step: int = 0
    names: tuple[str, ...] = ()


def predict_outcome(
    steps: Sequence[StepUsage],
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    wrapped: StepUsage | None = None,
) -> Prediction:
    """Predict what DDP does with the steps of one process.

    Args:
        steps: Successive steps, at least one. With several processes, call
            it for each: a reducer decides from what its own process does.
        find_unused_parameters: As DDP's; no effect with ``static_graph``.
        static_graph: As DDP's.
        wrapped: A step at whose beginning parameters were as at wrapping;
            None for the first of ``steps``.

    Returns:
        The first thing that goes wrong, or ``Outcome.OK``.

    Examples:
        >>> ready = (ReadyGradient('a', 0),)
        >>> step = StepUsage(('a', 'b'), ready, reachable=frozenset('a'))
        >>> predict_outcome([step]).outcome.name
        'UNFINISHED'
        >>> predict_outcome([step], find_unused_parameters=True).outcome.name
        'OK'
    """
    failures = predict_failures(
        steps,
        find_unused_parameters=find_unused_parameters,
        static_graph=static_graph,
        wrapped=wrapped,
    )
    return failures[0] if failures else Prediction(Outcome.OK)


def predict_failures(
    steps: Sequence[StepUsage],
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    wrapped: StepUsage | None = None,
) -> tuple[Prediction, ...]:
    """All that goes wrong, in its order, up to the first error.

    Arguments are those of :func:`predict_outcome`, whose result is the first
    of these. Only what is silent is followed by anything.
    """
    wrapped = wrapped or steps[0]
    if wrapped.refused or not wrapped.names:
        return (Prediction(Outcome.REFUSED, 0, wrapped.refused),)
    reducer = _Reducer(wrapped, find_unused_parameters, static_graph)
    results = []
    for number, usage in enumerate(steps):
        try:
            reducer.run(usage)
        except _ReducerError as error:
            results.append(Prediction(error.outcome, number, error.names))
            break
        local = reducer.local(usage)
        if local:
            results.append(Prediction(Outcome.DIVERGED, number, local))
    return tuple(results)


class _ReducerError(Exception):
    """An error of the reducer.

    Args:
        outcome: Its kind.
        names: The parameters concerned.
    """

    def __init__(self, outcome: Outcome, names: tuple[str, ...]) -> None:
        super().__init__(outcome, names)
        self.outcome, self.names = outcome, names


class _Reducer:
    """The reducer of one process, replayed without gradients.

    Args:
        first: The first step: its parameters are those that DDP knows.
        find_unused: ``find_unused_parameters``.
        static: ``static_graph``.
    """

    def __init__(
        self, first: StepUsage, find_unused: bool, static: bool
    ) -> None:
        self._names = first.names
        self._by_serial = {
            serial: name
            for name, serial in first.serials.items()
            if name in first.names
        }
        self._sparse = first.sparse
        self._find_unused = find_unused and not static
        self._static = static
        # Averages begun, by the first gradient after the one before.
        self._num_backwards = 0
        self._hears = False
        # Whether the next gradients are counted.
        self._listens = False
        # Whether a step has begun to be averaged, and not ended.
        self._unfinished = False
        self._finishes: tuple[int, int] | None = None
        self._ready: set[str] = set()
        self._unused: tuple[str, ...] = ()
        self._unused_are_ready = False
        self._counts = dict.fromkeys(self._names, 0)
        self._left: dict[str, int] = {}
        self._static_begun = False
        self._more: tuple[str, ...] = ()
        # Those with a gradient of this process alone, in this order.
        self._local: dict[str, None] = {}
        # Of the first step of a static graph: the last gradient of each.
        self._last: dict[str, ReadyGradient] = {}
        # Gradients that a hook has removed again in this step.
        self._removed: set[str | None] = set()
        # Those with a gradient now, and those that had one at any time since
        # the last average.
        self._present: set[str] = set()
        self._used: set[str] = set()

    def run(self, usage: StepUsage) -> None:
        """Replay a step, up to where the next one would begin."""
        name_of = self._name_in(usage)
        self._local.clear()
        self._present.clear()
        self._backward(_renamed(usage.in_forward, name_of), None)
        for name in (name_of[n] for n in usage.cleared):
            self._local.pop(name, None)
            self._present.discard(name)
        self._begin_backward(usage, name_of)
        joins_at = None
        if self._find_unused or (self._static and not self._static_begun):
            joins_at = usage.joins_at
        gradients = usage.ready
        if joins_at is not None:
            gradients = _with_empty(usage)
        gradients = _renamed(gradients, name_of)
        self._removed = {name_of.get(name) for name in usage.removed}
        if self._static:
            self._more = self._beyond(gradients)
        self._backward(gradients, joins_at)
        if self._unfinished:
            missing = tuple(n for n in self._names if n not in self._ready)
            raise _ReducerError(Outcome.UNFINISHED, missing)

    def local(self, usage: StepUsage) -> tuple[str, ...]:
        """Parameters whose gradient was not averaged in a step."""
        name_of = self._name_in(usage)
        foreign = [
            gradient.name
            for gradient in (*usage.in_forward, *usage.ready)
            if not name_of.get(gradient.name)
        ]
        foreign += [*usage.by_hand, *usage.stepped]
        return tuple(dict.fromkeys((*self._local, *foreign)))

    def _name_in(self, usage: StepUsage) -> dict[str, str]:
        """The name at wrapping of each parameter of a step, '' for none."""
        names = {}
        for name in (*usage.names, *usage.late):
            serial = usage.serials.get(name)
            if self._by_serial and serial is not None:
                names[name] = self._by_serial.get(serial, '')
            else:
                names[name] = name if name in self._counts else ''
        return names

    def _begin_backward(
        self, usage: StepUsage, name_of: Mapping[str, str]
    ) -> None:
        """What follows the forward."""
        self._listens = True
        self._ready.clear()
        self._unused_are_ready = False
        self._finishes = None
        self._left = dict(self._counts)
        if self._find_unused:
            reached = {name_of[n] for n in usage.reachable if n in name_of}
            self._unused = tuple(n for n in self._names if n not in reached)

    def _beyond(self, gradients: Sequence[ReadyGradient]) -> tuple[str, ...]:
        """Parameters that are ready more often than in the first step."""
        counts = dict.fromkeys(self._names, 0)
        for gradient in gradients:
            counts[gradient.name] += 1
        return tuple(n for n, c in counts.items() if c > self._left[n])

    def _backward(
        self, gradients: Sequence[ReadyGradient], joins_at: int | None
    ) -> None:
        """Replay the backwards of a step.

        The one of number ``joins_at`` goes through what DDP has returned.
        """
        begins = joins_at is not None and (
            self._static and not self._static_begun
        )
        last = _ends_of_passes(gradients)
        for index, gradient in enumerate(gradients):
            if not gradient.empty:
                self._local[gradient.name] = None
                self._present.add(gradient.name)
                self._used.add(gradient.name)
            self._hear(gradient)
            if begins and (joins_at, 0) in last[index]:
                self._finish_first()
                begins = False
            if self._finishes in last[index]:
                self._finish()
        if begins and not gradients:
            self._finish_first()

    def _hear(self, gradient: ReadyGradient) -> None:
        """The hook of a parameter."""
        name = gradient.name
        if not self._hears:
            self._hears = True
            self._num_backwards += 1
        if self._is_first():
            self._counts[name] += 1
            if not gradient.empty:
                self._last[name] = gradient
            return
        if not self._listens:
            return
        key = gradient.backward, gradient.task
        if not self._unused_are_ready:
            self._unused_are_ready = True
            for unused in self._unused:
                self._mark(unused, key, None)
        if self._static:
            if self._left[name] <= 0:
                raise _ReducerError(Outcome.GRAPH_CHANGED, self._more)
            self._left[name] -= 1
            if self._left[name]:
                return
        self._mark(name, key, gradient)

    def _is_first(self) -> bool:
        """Whether it is the step that a static graph is learned from.

        It remains so until gradients have been averaged once.
        """
        return self._static and self._num_backwards == 1

    def _check_layout(self, name: str, gradient: ReadyGradient | None) -> None:
        """A sparse gradient has to be where one is expected, and only there.

        ``gradient`` is None, or empty, for one that is not there.
        """
        there = gradient is not None and not gradient.empty
        if (there and gradient.sparse) != (name in self._sparse):
            raise _ReducerError(Outcome.UNEXPECTED, (name,))

    def _mark(
        self,
        name: str,
        key: tuple[int, int],
        gradient: ReadyGradient | None,
    ) -> None:
        """A parameter is ready to be averaged."""
        if name in self._ready:
            if self._finishes is not None:
                # The averages that are done are looked at first.
                self._check_presence()
            raise _ReducerError(Outcome.READY_TWICE, (name,))
        self._ready.add(name)
        self._unfinished = True
        self._check_layout(name, gradient)
        if len(self._ready) == len(self._names):
            # It is done when this backward pass ends.
            self._finishes = key

    def _finish_first(self) -> None:
        """Average after the first step of a static graph."""
        self._static_begun = True
        gone = tuple(name for name in self._last if name in self._removed)
        if gone:
            raise _ReducerError(Outcome.UNEXPECTED, gone)
        self._unused = tuple(n for n, c in self._counts.items() if not c)
        for name in self._names:
            self._check_layout(name, self._last.get(name))
        self._finish()

    def _check_presence(self) -> None:
        """A gradient that was noted as used is there to be averaged."""
        gone = self._used - self._present
        if gone and (self._find_unused or self._is_first()):
            names = tuple(name for name in self._names if name in gone)
            raise _ReducerError(Outcome.UNEXPECTED, names)

    def _finish(self) -> None:
        """All gradients are averaged."""
        self._check_presence()
        self._used.clear()
        self._listens = self._unfinished = self._hears = False
        self._finishes = None
        self._local.clear()


def _renamed(
    gradients: Sequence[ReadyGradient], name_of: Mapping[str, str]
) -> list[ReadyGradient]:
    """Gradients by the names at wrapping, without those that DDP ignores."""
    return [
        gradient
        if name_of[gradient.name] == gradient.name
        else dataclasses.replace(gradient, name=name_of[gradient.name])
        for gradient in gradients
        if name_of.get(gradient.name)
    ]


def _with_empty(usage: StepUsage) -> Sequence[ReadyGradient]:
    """Gradients of a backward through all that DDP passes through itself."""
    if usage.joint_ready is not None:
        return usage.joint_ready
    passed = usage.reachable if usage.passed is None else usage.passed
    ready = {gradient.name for gradient in usage.ready}
    empty = [
        ReadyGradient(name, 0, empty=True)
        for name in usage.names
        if name in passed and name not in ready
    ]
    return (*empty, *usage.ready)


def _ends_of_passes(
    gradients: Sequence[ReadyGradient],
) -> list[set[tuple[int, int]]]:
    """The passes, as (backward, task), that end after each gradient."""
    last = {}
    for index, gradient in enumerate(gradients):
        last[gradient.backward, gradient.task] = index
        # The outer pass ends last.
        last[gradient.backward, 0] = index
    ends: list[set[tuple[int, int]]] = [set() for _ in gradients]
    for key, index in last.items():
        ends[index].add(key)
    return ends
