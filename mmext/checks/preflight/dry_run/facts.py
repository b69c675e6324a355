"""What was seen while a model was trained for a few steps.

All of it are names and numbers, so that it can be kept and compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...ddp import StepUsage
from .options import ConfigOptions


@dataclass(frozen=True)
class LossTerm:
    """One entry of what ``forward(mode='loss')`` returned.

    Attributes:
        name: Its key.
        value: Its mean; a list counts with its sum.
        finite: Whether all of it is neither infinite nor NaN.
        requires_grad: Whether a gradient can come from it.
        summed: Whether it is part of what is differentiated, which MMEngine
            decides from the letters ``loss`` in the key.
        parameters: Those in its graph.
    """

    name: str
    value: float
    finite: bool
    requires_grad: bool
    summed: bool
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NormUse:
    """A batch norm in one step.

    Attributes:
        name: The module.
        kind: Its class.
        calls: How often its forward ran, not counting runs in the backward.
        updates: How often it changed its running statistics.
    """

    name: str
    kind: str
    calls: int
    updates: int


@dataclass(frozen=True)
class KeptGraph:
    """A tensor with a graph that is on a module after the step.

    Attributes:
        place: Module and attribute, as ``'head.memory[0]'``.
        function: Name of the function that made it.
        used_again: Whether the next step's loss was computed from it.
        count: How many tensors that attribute holds.
    """

    place: str
    function: str
    used_again: bool = False
    count: int = 1


@dataclass(frozen=True)
class GraphCost:
    """What a search for unused parameters would walk over in each step.

    Attributes:
        nodes: Functions in the graph of the outputs.
        milliseconds: Of one walk, in Python; that of the reducer, which is
            compiled, takes a fraction.
    """

    nodes: int = 0
    milliseconds: float = 0.0


@dataclass(frozen=True)
class Cause:
    """What is certain of the cause of an error.

    Attributes:
        text: In words.
        remedy: What to do about it; empty if that is not certain.
        modules: Concerned.
        keys: Of the config, that made these modules.
    """

    text: str
    remedy: str = ''
    modules: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Crash:
    """A step that ended with an exception.

    Attributes:
        kind: Of the batch.
        step: From 0.
        phase: ``'data_preprocessor'``, ``'forward'``, ``'backward'`` or
            ``'optimizer'``.
        error: Class of the exception.
        message: Its text.
        modules: Names of the modules it went through, the outermost first.
        place: ``file:line in function`` of the innermost code that is not
            PyTorch's.
        cause: What another run of the step has shown; None if nothing.
    """

    kind: str
    step: int
    phase: str
    error: str
    message: str
    modules: tuple[str, ...] = ()
    place: str = ''
    cause: Cause | None = None


@dataclass(frozen=True)
class StepRecord:
    """One step that ran to its end.

    Attributes:
        kind: Of the batch.
        step: From 0, for each kind.
        usage: What it did with each parameter.
        losses: What the forward returned.
        norms: The batch norms that ran in training mode.
        kept: Tensors with a graph that are on modules afterwards.
        cost: Of a search over the graph.
        bad_gradients: Parameters with a gradient that is not finite, in the
            order in which the backward reached them.
        bad_module: The first module whose output was not finite, where a
            loss is not; else empty.
        outsiders: What gets gradients and is neither in the model nor in an
            optimizer.
    """

    kind: str
    step: int
    usage: StepUsage
    losses: tuple[LossTerm, ...] = ()
    norms: tuple[NormUse, ...] = ()
    kept: tuple[KeptGraph, ...] = ()
    cost: GraphCost = GraphCost()
    bad_gradients: tuple[str, ...] = ()
    bad_module: str = ''
    outsiders: tuple[str, ...] = ()


@dataclass(frozen=True)
class OptimizerFacts:
    """How the optimizer's groups fit the model.

    Attributes:
        missing: Trainable parameters that no group holds.
        frozen: Parameters in a group that need no gradient.
        rate_zero: Trainable parameters whose group has a learning rate of 0.
        unmatched: Keys of ``paramwise_cfg.custom_keys`` that are in no
            parameter's name, with the nearest real name or an empty string.
        shadowed: Keys that fit names, all of which a longer key takes.
        groups: How many there are, in all optimizers.
        merged: How many, if those with the same settings were one.
        mergeable: Whether MMEngine's constructor has made them.
    """

    missing: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    rate_zero: tuple[str, ...] = ()
    unmatched: Mapping[str, str] = field(default_factory=dict)
    shadowed: tuple[str, ...] = ()
    groups: int = 0
    merged: int = 0
    mergeable: bool = False


@dataclass(frozen=True)
class DryRun:
    """All that was seen.

    Attributes:
        steps: Of each kind of batch, in their order.
        crashes: At most one of each kind.
        optimizer: None without an optimizer.
        zero_weights: Modules with a ``loss_weight`` of 0.
        config: Where the config sets what; None without a config.
        lazy: Parameters without a shape; no step is run with them.
    """

    steps: Mapping[str, tuple[StepRecord, ...]]
    crashes: tuple[Crash, ...] = ()
    optimizer: OptimizerFacts | None = None
    zero_weights: tuple[str, ...] = ()
    config: ConfigOptions | None = None
    lazy: tuple[str, ...] = ()

    @property
    def is_telling(self) -> bool:
        """Whether the first kind, the most common one, went through a step.

        Special batches alone, as those without an object, do not show what
        a training does with its parameters.
        """
        return bool(next(iter(self.steps.values()), ()))

    def all_steps(self) -> Iterator[StepRecord]:
        """The steps of all kinds, one after the other.

        Examples:
            >>> list(DryRun(steps={}).all_steps())
            []
        """
        for steps in self.steps.values():
            yield from steps

    def usages(self) -> tuple[StepUsage, ...]:
        """What each step did with the parameters."""
        return tuple(step.usage for step in self.all_steps())
