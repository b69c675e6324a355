"""What was seen while a model was trained for a few steps.

All of it are names and numbers, so that it can be kept and compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...ddp import StepUsage
from .options import ConfigOptions


@dataclass(frozen=True)
class LossTerm:
    """One entry of what ``forward(mode='loss')`` returned."""

    name: str
    # The mean; a list counts with its sum.
    value: float
    finite: bool
    requires_grad: bool
    # Whether it is part of what is differentiated, which MMEngine decides
    # from the letters ``loss`` in the key.
    summed: bool
    # Those in its graph.
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NormUse:
    """A batch norm in one step."""

    name: str
    kind: str
    # Not counting runs in the backward.
    calls: int
    # How often it changed its running statistics.
    updates: int


@dataclass(frozen=True)
class KeptGraph:
    """Tensors with a graph that are on a module after the step."""

    # Module and attribute, as ``'head.memory[0]'``.
    place: str
    # Name of the function that made the last of them.
    function: str
    # Whether the next step's loss was computed from it.
    used_again: bool = False
    count: int = 1


@dataclass(frozen=True)
class GraphCost:
    """What a search for unused parameters would walk over in each step."""

    # Functions in the graph of the outputs.
    nodes: int = 0
    # Of one walk in Python; that of the reducer, which is compiled, takes a
    # fraction.
    milliseconds: float = 0.0


@dataclass(frozen=True)
class Cause:
    """What is certain of the cause of an error."""

    text: str
    # Empty if it is not certain.
    remedy: str = ''
    modules: tuple[str, ...] = ()
    # Of the config, that made these modules.
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Crash:
    """A step that ended with an exception."""

    # Of the batch.
    kind: str
    # From 0.
    step: int
    # 'data_preprocessor', 'forward', 'backward' or 'optimizer'.
    phase: str
    # Class of the exception, and its text.
    error: str
    message: str
    # That it went through, the outermost first.
    modules: tuple[str, ...] = ()
    # ``file:line in function`` of the innermost code that is not PyTorch's.
    place: str = ''
    # What another run of the step has shown.
    cause: Cause | None = None


@dataclass(frozen=True)
class StepRecord:
    """One step, numbered from 0 for each kind, that ran to its end."""

    kind: str
    step: int
    usage: StepUsage
    losses: tuple[LossTerm, ...] = ()
    norms: tuple[NormUse, ...] = ()
    kept: tuple[KeptGraph, ...] = ()
    cost: GraphCost = GraphCost()
    # Parameters with a gradient that is not finite, in the order in which
    # the backward reached them.
    bad_gradients: tuple[str, ...] = ()
    # The first module whose output was not finite, where a loss is not.
    bad_module: str = ''
    # What gets gradients and is neither in the model nor in an optimizer.
    outsiders: tuple[str, ...] = ()


@dataclass(frozen=True)
class DryRun:
    """All that was seen."""

    # Of each kind of batch, in their order.
    steps: Mapping[str, tuple[StepRecord, ...]]
    # At most one of each kind.
    crashes: tuple[Crash, ...] = ()
    # Modules with a ``loss_weight`` of 0.
    zero_weights: tuple[str, ...] = ()
    # Where the config sets what.
    config: ConfigOptions | None = None
    # Parameters without a shape; no step is run with them.
    lazy: tuple[str, ...] = ()

    @property
    def is_telling(self) -> bool:
        """Whether the first kind, the most common one, went through a step.

        Special batches alone, as those without an object, do not show what
        a training does with its parameters.
        """
        return bool(next(iter(self.steps.values()), ()))

    def all_steps(self) -> Iterator[StepRecord]:
        """The steps of all kinds, one after the other."""
        for steps in self.steps.values():
            yield from steps

    def usages(self) -> tuple[StepUsage, ...]:
        """What each step did with the parameters."""
        return tuple(step.usage for step in self.all_steps())
