"""What DDP does with the steps of a proof, whatever order they come in."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..step_usage import StepUsage, UnusedReason
from ..sync_cures import SyncSettings
from ..sync_outcome import Outcome, Prediction, predict_outcome
from .facts import GraphCost, Proof, StepProof

__all__ = [
    'NO_SEARCH',
    'SEARCH',
    'STATIC',
    'Checkpoints',
    'Judgement',
    'Judgements',
    'judge',
]

NO_SEARCH = SyncSettings()
SEARCH = SyncSettings(find_unused_parameters=True)
STATIC = SyncSettings(static_graph=True)


class Checkpoints(str, Enum):
    """Which activation checkpoints a model has."""

    AS_IS = 'as they are'
    NO_REENTRANT = 'none of them reentrant'
    NONE = 'none at all'


@dataclass(frozen=True)
class Judgement:
    """What happens with one choice of settings.

    Attributes:
        settings: Of DDP.
        checkpoints: Which are left.
        outcome: What happens first.
        kind: Batch with which it happens; empty if all is well.
        step: Of that kind, from 0, the step that has the cause.
        names: The parameters concerned.
        untrained: Parameters that get no gradient from a reentrant
            checkpoint, in one process as in many, without an error.
    """

    settings: SyncSettings
    checkpoints: Checkpoints
    outcome: Outcome
    kind: str = ''
    step: int = 0
    names: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether everything is trained as it should be."""
        return self.outcome is Outcome.OK and not self.untrained

    @property
    def result(self) -> str:
        """``'ok'``, ``'silent'`` or ``'error at step 2'``, from 1.

        A missing gradient is noticed in the forward of the step after it.
        """
        if self.outcome is Outcome.OK:
            return 'silent' if self.untrained else 'ok'
        if self.outcome is Outcome.DIVERGED:
            return 'silent'
        late = self.outcome is Outcome.UNFINISHED
        return f'error at step {self.step + 1 + late}'


# A checkpoint that is not reentrant is an ordinary part of the graph: for DDP
# it might as well not be there.
_CHANGES: dict[Checkpoints, Callable[[StepUsage], StepUsage]] = {
    Checkpoints.AS_IS: lambda usage: usage,
    Checkpoints.NO_REENTRANT: StepUsage.without_reentrant,
    Checkpoints.NONE: StepUsage.without_reentrant,
}


class Judgements:
    """Every choice of settings for a proof.

    Args:
        proof: What was seen.
        current: The settings in use.

    Attributes:
        rows: One for each choice.
        current: That of the settings in use.
        cost: Of the search that ``find_unused_parameters=True`` adds to each
            step.
        reentrant: Whether the model has reentrant checkpoints.
        checkpointed: Whether it has any.
        fired: Parameters that have a gradient in any step.
    """

    def __init__(self, proof: Proof, current: SyncSettings) -> None:
        steps = list(proof.all_steps())
        if current.static_graph:
            # DDP then leaves the other flag out.
            current = STATIC
        self.rows = tuple(
            judge(steps, settings, checkpoints)
            for settings in (NO_SEARCH, SEARCH, STATIC)
            for checkpoints in Checkpoints
        )
        self.current = self.row(current)
        usages = [step.usage for step in steps]
        self.fired = {f.name for u in usages for f in u.firings}
        self.reentrant = any(u.reentrant or u.call_sites for u in usages)
        self.checkpointed = self.reentrant or any(u.reran for u in usages)
        costs = [step.cost for step in steps]
        self.cost = max(costs, key=lambda c: c.nodes, default=GraphCost())

    def row(
        self,
        settings: SyncSettings,
        checkpoints: Checkpoints = Checkpoints.AS_IS,
    ) -> Judgement:
        """That of a choice.

        Args:
            settings: One of those in the table.
            checkpoints: Which are left.
        """
        return next(
            row
            for row in self.rows
            if (row.settings, row.checkpoints) == (settings, checkpoints)
        )


def judge(
    steps: Sequence[StepProof],
    settings: SyncSettings,
    checkpoints: Checkpoints = Checkpoints.AS_IS,
) -> Judgement:
    """What DDP does, whatever order the steps come in.

    Args:
        steps: Of all kinds of batches; in a training each may follow each,
            and processes may have different ones.
        settings: Of DDP.
        checkpoints: Which are left.

    Returns:
        The first thing that goes wrong, what is silent before what is loud.
    """
    change = _CHANGES[checkpoints]
    usages = [change(step.usage) for step in steps]
    found = [
        (prediction, index)
        for prediction, index in _predictions(usages, settings)
        if prediction.outcome is not Outcome.OK
    ]
    dead = tuple(dict.fromkeys(n for u in usages for n in untrained(u)))
    if not found:
        return Judgement(settings, checkpoints, Outcome.OK, untrained=dead)
    silent = [f for f in found if f[0].outcome is Outcome.DIVERGED]
    prediction, index = (silent or found)[0]
    return Judgement(
        settings,
        checkpoints,
        prediction.outcome,
        kind=steps[index].kind,
        step=steps[index].step,
        names=_all_names(prediction, usages[index], settings),
        untrained=dead,
    )


def untrained(usage: StepUsage) -> list[str]:
    """Parameters to which a reentrant checkpoint lets no gradient."""
    return [
        name
        for name, use in usage.unused.items()
        if use.reason is UnusedReason.CHECKPOINT_INPUT
    ]


def _predictions(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> Iterator[tuple[Prediction, int]]:
    """Predictions, and which of the usages has the cause."""
    if not settings.static_graph:
        for index, usage in enumerate(usages):
            flag = settings.find_unused_parameters
            yield predict_outcome([usage], find_unused_parameters=flag), index
        return
    different = _different(usages)
    for first in different:
        for index in different:
            # The first step is repeated: it may not even be like itself.
            pair = [usages[first], usages[first], usages[index]]
            yield predict_outcome(pair, static_graph=True), index


def _different(usages: Sequence[StepUsage]) -> list[int]:
    """Indices of usages, one of each way to use the parameters."""
    seen: dict[Any, int] = {}
    for index, usage in enumerate(usages):
        counts = frozenset(usage.counts().items())
        seen.setdefault((counts, usage.reachable), index)
    return list(seen.values())


def _all_names(
    prediction: Prediction, usage: StepUsage, settings: SyncSettings
) -> tuple[str, ...]:
    """All the parameters that would have been named, not just the first."""
    if prediction.outcome is not Outcome.READY_TWICE:
        return prediction.names
    names = dict.fromkeys((*prediction.names, *usage.twice))
    if settings.find_unused_parameters:
        names |= dict.fromkeys(usage.hidden)
    return tuple(names)
