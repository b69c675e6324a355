"""The table of what DDP does for each of its settings, and what to use."""

from dataclasses import dataclass, field
from typing import Any

from ..sync_cures import SyncSettings
from ..sync_outcome import Outcome
from .config_options import ConfigOptions
from .facts import Proof
from .judging import (
    NO_SEARCH,
    SEARCH,
    STATIC,
    Checkpoints,
    Judgement,
    Judgements,
)

__all__ = ['Verdict', 'Verdicts', 'verdict_table']

_WORDS = {
    Outcome.OK: 'ok',
    Outcome.UNFINISHED: 'a parameter has no gradient',
    Outcome.READY_TWICE: 'a parameter is marked ready twice',
    Outcome.DIVERGED: 'wrong gradients, replicas drift apart',
    Outcome.GRAPH_CHANGED: 'the graph has changed',
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


def verdict_table(proof: Proof, current: SyncSettings) -> Verdicts:
    """Judge every choice of settings.

    Args:
        proof: What was seen.
        current: The settings in use.

    Returns:
        The verdicts, and what to use.

    Examples:
        >>> from mmext.preflight import Firing, StepUsage
        >>> from mmext.preflight.proof import StepProof
        >>> usage = StepUsage(('a', 'b'), (Firing('a', 0),), frozenset('a'))
        >>> proof = Proof({'normal': (StepProof('normal', 0, usage),)})
        >>> table = verdict_table(proof, SyncSettings())
        >>> table.rows[0].outcome
        'error at step 2: a parameter has no gradient'
        >>> table.options
        {'find_unused_parameters': True}
    """
    options = proof.config or ConfigOptions.of_settings(current)
    found = Judgements(proof, current)
    chosen, reason = _choose(found)
    changes: dict[str, Any] = {}
    fix = ''
    if chosen is not None:
        changes = options.settings(chosen.settings)
        if chosen.checkpoints is Checkpoints.NO_REENTRANT:
            changes |= options.without_reentrant()
        fix = _fix(
            changes, found.row(NO_SEARCH, chosen.checkpoints), found.fired
        )
    cost = found.cost
    return Verdicts(
        rows=_rows(found, chosen),
        reason=reason,
        fix=fix,
        options=changes,
        cost=f'a walk over {cost.nodes} nodes of the graph, '
        f'{cost.milliseconds:.2g} ms in Python and a fraction of it in DDP, '
        'and a small reduction',
        nodes=cost.nodes,
        milliseconds=cost.milliseconds,
    )


def _choose(found: Judgements) -> tuple[Judgement | None, str]:
    for settings, checkpoints, reason in _CHOICES:
        row = found.row(settings, checkpoints)
        if row.is_ok:
            return row, reason
    return None, _NONE


def _rows(found: Judgements, chosen: Judgement | None) -> tuple[Verdict, ...]:
    as_is = 'as they are' if found.checkpointed else 'none'
    return tuple(
        Verdict(
            checkpointing=as_is
            if row.checkpoints is Checkpoints.AS_IS
            else row.checkpoints.value,
            find_unused_parameters=row.settings.find_unused_parameters,
            static_graph=row.settings.static_graph,
            outcome=_outcome(row),
            works=row.is_ok,
            current=row is found.current,
            recommended=row is chosen,
            names=row.names or row.untrained,
            batches=row.kind,
        )
        for row in found.rows
        if found.reentrant or row.checkpoints is Checkpoints.AS_IS
    )


def _outcome(row: Judgement) -> str:
    if row.is_ok:
        return 'ok'
    if row.outcome is Outcome.OK:
        return 'silent: parameters in a checkpoint are not trained'
    return f'{row.result}: {_WORDS[row.outcome]}'


def _fix(changes: dict[str, Any], plain: Judgement, fired: set[str]) -> str:
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
