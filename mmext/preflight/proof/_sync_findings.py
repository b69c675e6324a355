"""What a proof says about the averaging of gradients."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..findings import PreflightFinding, Severity
from ..step_usage import ParameterUse, UnusedReason
from ..sync_cures import SyncSettings
from ..sync_outcome import Outcome
from ._name_groups import count_of, in_words
from .config_options import FLAG, STATIC_GRAPH, ConfigOptions
from .facts import Proof
from .judging import NO_SEARCH, SEARCH, Checkpoints, Judgements

__all__ = ['sync_findings']

_FREEZE = (
    'freeze it in __init__ with requires_grad_(False), or remove it, if it is '
    'not to be trained'
)
_REMEDIES = {
    UnusedReason.NEVER_USED: f'use it in the loss; {_FREEZE}',
    UnusedReason.BRANCH_NOT_TAKEN: 'use it in every step, times 0 where a '
    'batch has nothing for it',
    UnusedReason.NOT_IN_LOSS: f'add its output to a loss; {_FREEZE}',
    UnusedReason.DETACHED: f'let gradients pass there; {_FREEZE}',
    UnusedReason.NO_GRAD: f'{_FREEZE}; else compute it with gradients',
    UnusedReason.FROZEN: 'freeze it earlier, when the model is built',
}
_NOT_REENTRANT = (
    'replace the reentrant checkpoints with the hook of the options; where '
    'code of yours calls torch.utils.checkpoint, pass use_reentrant=False'
)


@dataclass
class _Use:
    """In which batches a parameter had a gradient."""

    used: dict[str, None]
    unused: dict[str, ParameterUse]


def sync_findings(
    proof: Proof,
    current: SyncSettings,
    table: Judgements,
    options: ConfigOptions,
) -> Iterator[PreflightFinding]:
    """Findings about unused parameters, checkpoints and the two flags.

    Args:
        proof: What was seen.
        current: The settings in use.
        table: Its judgements.
        options: Where the config sets what.

    Yields:
        The findings.
    """
    if not proof.usages():
        return
    say = _SyncFindings(proof, current, table, options)
    yield from say.untrained()
    yield from say.unused()
    yield from say.data_dependent()
    yield from say.of_outcome()
    yield from say.needless()


class _SyncFindings:
    """The findings, each by a method of its own."""

    def __init__(
        self,
        proof: Proof,
        current: SyncSettings,
        table: Judgements,
        options: ConfigOptions,
    ) -> None:
        self.proof, self.current = proof, current
        self.table, self.options = table, options
        usages = proof.usages()
        self.names = list(dict.fromkeys(n for u in usages for n in u.names))
        self.uses = _uses(proof)
        self.rare = options.rarely_empty
        self.searched = current.find_unused_parameters or current.static_graph

    def words(self, names: Any) -> str:
        return in_words(names, self.names)

    def settings_for(self, *wanted: SyncSettings) -> dict[str, Any]:
        """Options for the first of some settings that works."""
        for settings in wanted:
            for checkpoints in (Checkpoints.AS_IS, Checkpoints.NO_REENTRANT):
                if self.table.row(settings, checkpoints).is_ok:
                    found = self.options.settings(settings)
                    if checkpoints is Checkpoints.NO_REENTRANT:
                        found |= self.options.without_reentrant()
                    return found
        return {}

    def call_site(self, names: Any) -> str:
        """Where the checkpoint of some parameters is called."""
        for usage in self.proof.usages():
            for name in names:
                if usage.call_sites.get(name):
                    return usage.call_sites[name]
        for usage in self.proof.usages():
            for name in names:
                if name in usage.reentrant:
                    return usage.reentrant[name]
        return ''

    def untrained(self) -> Iterator[PreflightFinding]:
        """What a reentrant checkpoint keeps from being trained."""
        names = [
            name
            for name, use in self.uses.items()
            if any(
                each.reason is UnusedReason.CHECKPOINT_INPUT
                for each in use.unused.values()
            )
        ]
        if not names:
            return
        site = self.call_site(names)
        yield PreflightFinding(
            rule='DDP004',
            severity=Severity.ERROR,
            message=f'without a gradient, so not trained: '
            f'{count_of(names)} in {self.words(names)}; the input of the '
            'reentrant '
            'checkpoint needs no gradient, as what comes before is frozen'
            + (f' ({site})' if site else ''),
            remedy=_NOT_REENTRANT,
            names=tuple(names),
            options=self.options.without_reentrant(),
        )

    def unused(self) -> Iterator[PreflightFinding]:
        """What no batch gives a gradient, by its reason."""
        groups: dict[UnusedReason, dict[str, ParameterUse]] = {}
        for name, use in self.uses.items():
            if use.used or not use.unused:
                continue
            best = _best_reason(use.unused)
            if best.reason is not UnusedReason.CHECKPOINT_INPUT:
                groups.setdefault(best.reason, {})[name] = best
        for reason, uses in groups.items():
            first = next(iter(uses.values()))
            about = ', '.join(filter(None, (first.detail, first.place)))
            effect = (
                'costs memory and is hidden by the settings'
                if self.searched
                else 'DDP stops at the second step'
            )
            yield PreflightFinding(
                rule='DDP001',
                severity=Severity.WARNING if self.searched else Severity.ERROR,
                message=f'{count_of(list(uses), "trainable parameter")} in '
                f'{self.words(list(uses))}: {reason.value}'
                + (f' ({about})' if about else '')
                + f', so without any gradient; {effect}',
                remedy=_REMEDIES[reason],
                names=tuple(uses),
                options={} if self.searched else self.settings_for(SEARCH),
            )

    def data_dependent(self) -> Iterator[PreflightFinding]:
        """What only some batches give a gradient, by those that do not."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, use in self.uses.items():
            if use.used and use.unused:
                groups.setdefault(tuple(use.unused), []).append(name)
        static, search = self.current.static_graph, self.searched
        for kinds, names in groups.items():
            use = self.uses[names[0]]
            place = _best_reason(use.unused).place
            both = [kind for kind in kinds if kind in use.used]
            seen = f'batches of kind {", ".join(kinds)}'
            if both:
                seen = f'some {seen}'
            if static:
                effect = 'static_graph stops the training with an error'
            elif search:
                effect = 'find_unused_parameters is needed for it'
            else:
                effect = 'DDP stops at the step after such a batch'
            fine = search and not static
            severity = Severity.INFO if fine else Severity.ERROR
            if not fine and kinds == ('empty',) and self.rare:
                severity = Severity.WARNING
                effect += f'; {self.rare}'
            yield PreflightFinding(
                rule='DDP007',
                severity=severity,
                message=f'without a gradient with {seen}, with one else: '
                f'{count_of(names)} in {self.words(names)}'
                + (f' ({place})' if place else '')
                + f'; {effect}',
                remedy=_REMEDIES[UnusedReason.BRANCH_NOT_TAKEN],
                names=tuple(names),
                batches=kinds,
                options={} if fine else self.settings_for(SEARCH),
            )

    def of_outcome(self) -> Iterator[PreflightFinding]:
        """What checkpoints do to the settings in use."""
        verdict = self.table.current
        names = verdict.names
        where = {'names': names, 'batches': (verdict.kind,)}
        site = self.call_site(names)
        at = f' ({site})' if site else ''
        what = f'{count_of(names)} in {self.words(names)}' if names else ''
        # What depends on the data has been said.
        changing = {n for n, u in self.uses.items() if u.used and u.unused}
        if verdict.outcome is Outcome.DIVERGED:
            yield PreflightFinding(
                rule='DDP003',
                severity=Severity.ERROR,
                message=f'the gradients of {what} are silently wrong: a '
                f'reentrant checkpoint{at} runs them twice in a step, DDP '
                'averages after the first time, and the replicas drift apart '
                'without an error',
                remedy=_NOT_REENTRANT,
                options=self.options.without_reentrant(),
                **where,
            )
        elif verdict.outcome is Outcome.READY_TWICE:
            yield self._ready_twice(what, at, where)
        elif self.current.static_graph and not changing.issuperset(names):
            yield PreflightFinding(
                rule='DDP008',
                severity=Severity.ERROR,
                message=f'static_graph=True, but not all steps use {what} '
                'in the same way, which ends the training',
                remedy='remove static_graph; where a parameter is returned '
                'from forward and is in no loss, return it detached',
                key=self.options.key_of(STATIC_GRAPH),
                options=self.settings_for(NO_SEARCH, SEARCH),
                **where,
            )

    def _ready_twice(
        self, what: str, at: str, where: dict[str, Any]
    ) -> PreflightFinding:
        outside = {
            n for u in self.proof.usages() for n in u.outside_forward
        }.intersection(where['names'])
        if outside:
            return PreflightFinding(
                rule='DDP009',
                severity=Severity.ERROR,
                message=f'used outside of forward, where '
                f'find_unused_parameters does not look: {what}; marked ready '
                'twice, which is an error in the first backward',
                remedy="use them in forward(mode='loss')",
                options=self.settings_for(NO_SEARCH),
                **where,
            )
        why = 'the module is used more than once in a step'
        if self.current.find_unused_parameters:
            why = 'find_unused_parameters=True does not look into it'
        return PreflightFinding(
            rule='DDP002',
            severity=Severity.ERROR,
            message=f'marked ready twice, which is an error in the backward: '
            f'{what}, in a reentrant checkpoint{at}; {why}',
            remedy=_NOT_REENTRANT,
            options=self.settings_for(NO_SEARCH, self.current),
            **where,
        )

    def needless(self) -> Iterator[PreflightFinding]:
        """Flags without which all is well."""
        plain = self.table.row(NO_SEARCH)
        if not plain.is_ok or not self.table.current.is_ok:
            return
        cost = self.table.cost
        if self.current.static_graph:
            yield PreflightFinding(
                rule='DDP006',
                severity=Severity.WARNING,
                message='static_graph=True is needless: every step gives '
                'every parameter one gradient; it hides it when one stops to '
                'get any, and forbids to accumulate gradients from the start',
                remedy='remove it',
                key=self.options.key_of(STATIC_GRAPH),
                options=self.options.settings(NO_SEARCH),
            )
        elif self.current.find_unused_parameters:
            yield PreflightFinding(
                rule='DDP005',
                severity=Severity.WARNING,
                message='find_unused_parameters=True is needless: every '
                'parameter gets a gradient from all batches that were tried; '
                f'each step walks over {cost.nodes} nodes and reduces a map '
                'of used parameters, reentrant checkpoints are forbidden, '
                'and parameters that lose their gradient are hidden',
                remedy='remove it',
                key=self.options.key_of(FLAG),
                options=self.options.settings(NO_SEARCH),
            )


def _uses(proof: Proof) -> dict[str, _Use]:
    uses: dict[str, _Use] = {}
    for step in proof.all_steps():
        counts = step.usage.counts()
        for name, count in counts.items():
            use = uses.setdefault(name, _Use({}, {}))
            if count:
                use.used[step.kind] = None
            elif name in step.usage.unused:
                use.unused.setdefault(step.kind, step.usage.unused[name])
    return uses


def _best_reason(unused: dict[str, ParameterUse]) -> ParameterUse:
    """The one that says most."""
    return next(
        (
            use
            for use in unused.values()
            if use.reason is not UnusedReason.NEVER_USED
        ),
        next(iter(unused.values())),
    )
