"""What DDP does with the steps of a dry run, and what to change for it."""

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ...ddp import Explanation, Outcome, Step, SyncSettings, Verdict
from .facts import DryRun, GraphCost, StepRecord
from .options import ConfigOptions


@dataclass(frozen=True)
class Verdicts:
    """All choices of settings, and why the recommended one is that."""

    rows: tuple[Verdict, ...]
    reason: str
    # What to change, in a sentence; and the smallest change of the config to
    # the recommended settings, as dotted keys.
    fix: str = ''
    options: dict[str, Any] = field(default_factory=dict)
    # Of the search that find_unused_parameters=True adds to each step, in
    # words; functions that it walks over, and how long in Python.
    cost: str = ''
    nodes: int = 0
    milliseconds: float = 0.0


def verdict_table(dry_run: DryRun, current: SyncSettings) -> Verdicts:
    """What happens with each choice of settings, and which one to use."""
    options = dry_run.config or ConfigOptions.of_settings(current)
    explanation = explain_dry_run(dry_run, current)
    chosen = explanation.recommended
    changes: dict[str, Any] = {}
    fix = []
    if chosen is not None:
        changes = options.settings(chosen.settings)
        if not chosen.reentrant:
            changes |= options.without_reentrant()
        plain = explanation.row(SyncSettings(), chosen.reentrant)
        if plain.failure is Outcome.UNFINISHED:
            fix.append(explanation.in_model())
        if changes:
            lines = ', '.join(f'{key}={v!r}' for key, v in changes.items())
            fix.append(f'set {lines}')
    cost = search_cost(dry_run)
    return Verdicts(
        rows=explanation.verdicts,
        reason=explanation.reason,
        fix='; or '.join(fix),
        options=changes,
        cost=f'a walk over {cost.nodes} nodes of the graph, '
        f'{cost.milliseconds:.2g} ms in Python and a fraction of it in DDP, '
        'and a small reduction',
        nodes=cost.nodes,
        milliseconds=cost.milliseconds,
    )


def explain_dry_run(dry_run: DryRun, current: SyncSettings) -> Explanation:
    """What DDP does with the steps after which gradients are averaged."""
    config = dry_run.config
    return Explanation(
        [Step(s.usage, s.kind, s.step) for s in averaged_steps(dry_run)],
        current,
        accumulates=config is not None and config.accumulated > 1,
    )


def averaged_steps(dry_run: DryRun) -> list[StepRecord]:
    """Those after which gradients are averaged, if they are accumulated.

    Where none of the first kind is such a step, all are looked at.
    """
    number = dry_run.config.accumulated if dry_run.config else 1
    first, *others = [*dry_run.steps.values()] or [()]
    return list(chain(first[number - 1 :: number] or first, *others))


def without_spoiled_steps(dry_run: DryRun) -> DryRun:
    """Of a model with random weights: without what only an update did.

    The rate is made for trained weights. After one update of random ones an
    RPN may propose nothing, and what comes behind it gets no gradient.
    """
    number = dry_run.config.accumulated if dry_run.config else 1
    kept = {}
    for kind, steps in dry_run.steps.items():
        unused = {n for step in steps[:number] for n in step.usage.unused}
        kept[kind] = tuple(
            step
            for step in steps
            if step.step < number or unused.issuperset(step.usage.unused)
        )
    return replace(dry_run, steps=kept)


def search_cost(dry_run: DryRun) -> GraphCost:
    """That of the largest graph."""
    costs = [step.cost for step in averaged_steps(dry_run)]
    return max(costs, key=lambda c: c.nodes, default=GraphCost())
