"""What DDP does with the steps of a dry run, in any order of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any

from ...ddp import (
    Outcome,
    Prediction,
    StepUsage,
    SyncSettings,
    UnusedReason,
    predict_outcome,
)
from .facts import DryRun, GraphCost, StepRecord
from .options import ConfigOptions

NO_SEARCH = SyncSettings()
SEARCH = SyncSettings(find_unused_parameters=True)
STATIC = SyncSettings(static_graph=True)


class Checkpoints(str, Enum):
    """Which activation checkpoints a model has."""

    AS_IS = 'as they are'
    NO_REENTRANT = 'none of them reentrant'
    NONE = 'none at all'


@dataclass(frozen=True)
class OutcomeRow:
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


class OutcomeTable:
    """What happens with each choice of settings after a dry run.

    Attributes:
        rows: One for each choice.
        current: That of the settings in use.
        cost: Of the search that ``find_unused_parameters=True`` adds to each
            step.
        reentrant: Whether the model has reentrant checkpoints.
        checkpointed: Whether it has any.
        fired: Parameters that have a gradient in any step.
    """

    def __init__(self, dry_run: DryRun, current: SyncSettings) -> None:
        steps, kind = averaged_steps(dry_run), next(iter(dry_run.steps), '')
        accumulates = dry_run.config and dry_run.config.accumulated > 1
        if current.static_graph:
            # DDP then leaves the other flag out.
            current = STATIC
        self.rows = tuple(
            OutcomeRow(settings, checkpoints, Outcome.ACCUMULATED, kind)
            if settings is STATIC and accumulates
            else first_outcome(steps, settings, checkpoints)
            for settings in (NO_SEARCH, SEARCH, STATIC)
            for checkpoints in Checkpoints
        )
        self.current = self.row(current)
        usages = dry_run.usages()
        self.fired = {f.name for u in usages for f in u.ready}
        self.reentrant = any(u.reentrant or u.call_sites for u in usages)
        self.checkpointed = self.reentrant or any(u.reran for u in usages)
        costs = [step.cost for step in steps]
        self.cost = max(costs, key=lambda c: c.nodes, default=GraphCost())

    def row(
        self,
        settings: SyncSettings,
        checkpoints: Checkpoints = Checkpoints.AS_IS,
    ) -> OutcomeRow:
        """That of a choice."""
        return next(
            row
            for row in self.rows
            if (row.settings, row.checkpoints) == (settings, checkpoints)
        )


def averaged_steps(dry_run: DryRun) -> list[StepRecord]:
    """Those after which gradients are averaged, if they are accumulated.

    Where none of the first kind is such a step, all are looked at.
    """
    number = dry_run.config.accumulated if dry_run.config else 1
    first, *others = [*dry_run.steps.values()] or [()]
    return list(chain(first[number - 1 :: number] or first, *others))


def first_outcome(
    steps: Sequence[StepRecord],
    settings: SyncSettings,
    checkpoints: Checkpoints = Checkpoints.AS_IS,
) -> OutcomeRow:
    """The first thing that goes wrong with DDP, silent before loud.

    In a training any kind of batch may follow any other, and processes may
    have different ones; so the steps may come in any order.
    """
    usages = [step.usage for step in steps]
    if checkpoints is not Checkpoints.AS_IS:
        # One that is not reentrant is an ordinary part of the graph: for DDP
        # it might as well not be there.
        usages = [usage.without_reentrant() for usage in usages]
    failures = [
        (prediction, index)
        for prediction, index in _predictions(usages, settings)
        if prediction.outcome is not Outcome.OK
    ]
    dead = tuple(dict.fromkeys(n for u in usages for n in untrained(u)))
    if not failures:
        return OutcomeRow(settings, checkpoints, Outcome.OK, untrained=dead)
    silent = [f for f in failures if f[0].outcome is Outcome.DIVERGED]
    prediction, index = (silent or failures)[0]
    return OutcomeRow(
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
            prediction = predict_outcome(
                [usage],
                find_unused_parameters=settings.find_unused_parameters,
                wrapped=usages[0],
            )
            yield prediction, index
        return
    different = _different(usages)
    for first in different:
        for index in different:
            # The first step is repeated: it may not even be like itself.
            pair = [usages[first], usages[first], usages[index]]
            prediction = predict_outcome(
                pair, static_graph=True, wrapped=usages[0]
            )
            # What the first step does is no change of the graph.
            own = prediction.step < len(pair) - 1
            yield prediction, first if own else index


def _different(usages: Sequence[StepUsage]) -> list[int]:
    """Indices of usages, one of each way to use the parameters."""
    seen: dict[Any, int] = {}
    for index, usage in enumerate(usages):
        kinds = (
            frozenset(usage.counts().items()),
            usage.reachable,
            usage.passed,
            usage.in_forward,
            usage.late,
            usage.by_hand,
            frozenset(usage.serials.items()),
        )
        seen.setdefault(kinds, index)
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


_WORDS = {
    Outcome.OK: 'ok',
    Outcome.UNFINISHED: 'a parameter has no gradient',
    Outcome.READY_TWICE: 'a parameter is marked ready twice',
    Outcome.DIVERGED: 'replicas drift apart',
    Outcome.GRAPH_CHANGED: 'the graph has changed',
    Outcome.ACCUMULATED: 'gradients are accumulated before any was averaged',
    Outcome.UNEXPECTED: 'a gradient is sparse, or missing, unexpectedly',
    Outcome.REFUSED: 'the model cannot be wrapped',
}


@dataclass(frozen=True)
class Verdict:
    """What happens with one choice of settings.

    Attributes:
        checkpointing: Which activation checkpoints the model has: those
            that are there, ``'none'`` if there are none, or what would be
            left of them.
        find_unused_parameters: As DDP's.
        static_graph: As DDP's; the other flag has no effect with it.
        outcome: ``'ok'``, or ``'error at step 2: ...'``, from 1, or
            ``'silent: ...'``.
        works: Whether everything is trained as it should be.
        current: Whether these are the settings in use.
        recommended: Whether they are the ones to use.
        names: The parameters concerned.
        batches: Kind of batch with which it happens; empty if all is well.
    """

    checkpointing: str
    find_unused_parameters: bool
    static_graph: bool
    outcome: str
    works: bool
    current: bool = False
    recommended: bool = False
    names: tuple[str, ...] = ()
    batches: str = ''


@dataclass(frozen=True)
class Verdicts:
    """All choices of settings.

    Attributes:
        rows: One verdict for each choice; other checkpointing is among them
            where it can make a difference.
        reason: Why the recommended one is that, or that none helps.
        fix: What to change, in a sentence; empty if nothing has to be.
        options: Smallest change of the config to the recommended settings,
            as dotted keys; empty for none.
        cost: Of the search that ``find_unused_parameters=True`` adds to each
            step, in words.
        nodes: Functions that it walks over.
        milliseconds: Of one walk in Python; DDP's takes a fraction.
    """

    rows: tuple[Verdict, ...]
    reason: str
    fix: str = ''
    options: dict[str, Any] = field(default_factory=dict)
    cost: str = ''
    nodes: int = 0
    milliseconds: float = 0.0


# What to try, the cheapest first, and why.
_CHOICES = (
    (
        NO_SEARCH,
        Checkpoints.AS_IS,
        'every step gives every parameter one gradient',
    ),
    (
        NO_SEARCH,
        Checkpoints.NO_REENTRANT,
        'every step gives every parameter one gradient, once no checkpoint '
        'is reentrant',
    ),
    (
        SEARCH,
        Checkpoints.AS_IS,
        'some parameters get no gradient, which takes a search in each step',
    ),
    (
        SEARCH,
        Checkpoints.NO_REENTRANT,
        'some parameters get no gradient, which takes a search in each step, '
        'and that allows no reentrant checkpoint',
    ),
    (
        STATIC,
        Checkpoints.AS_IS,
        'all steps use the same parameters in the same way, which a search '
        'does not see',
    ),
)
_NONE = 'no setting helps: the model has to change'


def verdict_table(dry_run: DryRun, current: SyncSettings) -> Verdicts:
    """What happens with each choice of settings, and which one to use."""
    options = dry_run.config or ConfigOptions.of_settings(current)
    table = OutcomeTable(dry_run, current)
    chosen, reason = _choose(table)
    changes: dict[str, Any] = {}
    fix = ''
    if chosen is not None:
        changes = options.settings(chosen.settings)
        if chosen.checkpoints is Checkpoints.NO_REENTRANT:
            changes |= options.without_reentrant()
        fix = _fix(
            changes, table.row(NO_SEARCH, chosen.checkpoints), table.fired
        )
    cost = table.cost
    return Verdicts(
        rows=_rows(table, chosen),
        reason=reason,
        fix=fix,
        options=changes,
        cost=f'a walk over {cost.nodes} nodes of the graph, '
        f'{cost.milliseconds:.2g} ms in Python and a fraction of it in DDP, '
        'and a small reduction',
        nodes=cost.nodes,
        milliseconds=cost.milliseconds,
    )


def _choose(table: OutcomeTable) -> tuple[OutcomeRow | None, str]:
    for settings, checkpoints, reason in _CHOICES:
        row = table.row(settings, checkpoints)
        if row.is_ok:
            return row, reason
    return None, _NONE


def _rows(
    table: OutcomeTable, chosen: OutcomeRow | None
) -> tuple[Verdict, ...]:
    as_is = 'as they are' if table.checkpointed else 'none'
    return tuple(
        Verdict(
            checkpointing=as_is
            if row.checkpoints is Checkpoints.AS_IS
            else row.checkpoints.value,
            find_unused_parameters=row.settings.find_unused_parameters,
            static_graph=row.settings.static_graph,
            outcome=_outcome(row),
            works=row.is_ok,
            current=row is table.current,
            recommended=row is chosen,
            names=row.names or row.untrained,
            batches=row.kind,
        )
        for row in table.rows
        if table.reentrant or row.checkpoints is Checkpoints.AS_IS
    )


def _outcome(row: OutcomeRow) -> str:
    if row.is_ok:
        return 'ok'
    if row.outcome is Outcome.OK:
        return 'silent: parameters in a checkpoint are not trained'
    return f'{row.result}: {_WORDS[row.outcome]}'


def _fix(changes: dict[str, Any], plain: OutcomeRow, fired: set[str]) -> str:
    """What to change in a sentence."""
    lines = ', '.join(f'{key}={value!r}' for key, value in changes.items())
    if plain.outcome is Outcome.UNFINISHED:
        count = f'{len(plain.names)} parameter(s)'
        model = (
            f'freeze {count} with requires_grad_(False), or use them in the '
            'loss'
        )
        if fired.intersection(plain.names):
            model = (
                f'use {count} in every step, times 0 where a batch has '
                'nothing for them'
            )
        return f'{model}; or set {lines}' if lines else f'better {model}'
    return f'set {lines}' if lines else ''
