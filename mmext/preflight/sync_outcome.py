"""What DDP will do with a step, told without a process group.

The rules are those of PyTorch's reducer (``torch/csrc/distributed/c10d/
reducer.cpp``): it waits for one completed gradient, a firing, of every
parameter that required gradients when the model was wrapped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .step_usage import Firing, StepUsage

__all__ = ['Outcome', 'Prediction', 'predict_outcome']


class Outcome(str, Enum):
    """What happens to the gradients of a process."""

    OK = 'ok'
    UNFINISHED = 'a parameter has no gradient: error at the next forward'
    READY_TWICE = 'a parameter is marked ready twice: error in backward'
    DIVERGED = 'silently wrong: later gradients of a process stay local'
    GRAPH_CHANGED = 'static_graph, and the graph has changed: error'


@dataclass(frozen=True)
class Prediction:
    """The first thing that is not in order.

    Attributes:
        outcome: What happens.
        step: In which of the given steps its cause is; 0 if all are in
            order.
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
) -> Prediction:
    """Predict what DDP does with the steps of one process.

    Args:
        steps: Successive steps, at least one. For more processes, ask for
            each: the reducer decides from what its own process does.
        find_unused_parameters: As DDP's; ignored with ``static_graph``, as
            there.
        static_graph: As DDP's.

    Returns:
        The first thing that goes wrong, or ``Outcome.OK``.

    Examples:
        >>> step = StepUsage(('a', 'b'), (Firing('a', 0),), frozenset('a'))
        >>> predict_outcome([step]).outcome.name
        'UNFINISHED'
        >>> predict_outcome([step], find_unused_parameters=True).outcome.name
        'OK'
    """
    if static_graph:
        return _predict_static(steps)
    for number, usage in enumerate(steps):
        outcome, names = _predict_step(usage, find_unused_parameters)
        if outcome is not Outcome.OK:
            return Prediction(outcome, number, names)
    return Prediction(Outcome.OK)


def _predict_static(steps: Sequence[StepUsage]) -> Prediction:
    """Every step has to repeat the firings of the first."""
    # In the first step all that forward returns is in the backward, if only
    # with an empty gradient; in later ones what is in the loss.
    first = {
        name: max(count, int(name in steps[0].reachable))
        for name, count in steps[0].counts(joint=True).items()
    }
    for number, usage in enumerate(steps[1:], 1):
        outcome, names = _predict_static_step(usage, first)
        if outcome is not Outcome.OK:
            return Prediction(outcome, number, names)
    return Prediction(Outcome.OK)


def _predict_static_step(
    usage: StepUsage, first: Mapping[str, int]
) -> tuple[Outcome, tuple[str, ...]]:
    """Replay the firings of a step, of which the reducer knows the numbers."""
    counts = usage.counts()
    left = dict(first)
    more = tuple(n for n in left if counts[n] > left[n])
    waiting = sum(left.values())
    for index, firing in enumerate(usage.firings):
        if not left[firing.name]:
            return Outcome.GRAPH_CHANGED, more
        left[firing.name] -= 1
        waiting -= 1
        if not waiting:
            # As without a static graph.
            rest = usage.firings[index + 1 :]
            heard, ignored = _split_at_end_of(firing.task, rest)
            if heard:
                return Outcome.GRAPH_CHANGED, more
            return (Outcome.DIVERGED if ignored else Outcome.OK), more
    missing = tuple(name for name, count in left.items() if count)
    return (Outcome.UNFINISHED if missing else Outcome.OK), missing


def _predict_step(
    usage: StepUsage, find_unused: bool
) -> tuple[Outcome, tuple[str, ...]]:
    """Replay the firings of a step as the reducer counts them."""
    waiting = set(usage.names)
    ready: set[str] = set()
    unused: set[str] = set()
    firings = usage.firings
    if find_unused:
        if usage.joint_firings is not None:
            firings = usage.joint_firings
        unused = waiting - usage.reachable
        # The search also makes all that forward returns part of the
        # backward: an empty gradient will do.
        waiting -= usage.reachable - {f.name for f in firings}
    for index, firing in enumerate(firings):
        if index == 0:
            # What the search did not find is marked at the first firing.
            ready.update(unused)
        if firing.name in ready:
            return Outcome.READY_TWICE, (firing.name,)
        ready.add(firing.name)
        if waiting <= ready:
            # It finishes when this backward pass ends; a nested one ends
            # before the outer one, and firings after it are not heard.
            rest = firings[index + 1 :]
            heard, ignored = _split_at_end_of(firing.task, rest)
            if heard:
                return Outcome.READY_TWICE, (heard[0].name,)
            lost = dict.fromkeys(f.name for f in ignored if not f.empty)
            return (Outcome.DIVERGED if lost else Outcome.OK), tuple(lost)
    missing = tuple(n for n in usage.names if n in waiting - ready)
    if not firings:
        missing = usage.names
    return (Outcome.UNFINISHED, missing) if missing else (Outcome.OK, ())


def _split_at_end_of(
    task: int, firings: Sequence[Firing]
) -> tuple[Sequence[Firing], Sequence[Firing]]:
    """Firings before and after a backward pass ends."""
    if task == 0:
        return firings, ()
    last = max(
        (i for i, firing in enumerate(firings) if firing.task == task),
        default=-1,
    )
    return firings[: last + 1], firings[last + 1 :]
