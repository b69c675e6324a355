"""What a dry run shows of the averaging of gradients."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...config import FLAG
from ...ddp import Outcome, SyncSettings, UnusedParameter, UnusedReason
from ...findings import Finding, Severity
from ..dry_run.facts import DryRun
from ..dry_run.options import STATIC_GRAPH, ConfigOptions
from ..dry_run.verdicts import (
    NO_SEARCH,
    SEARCH,
    Checkpoints,
    OutcomeTable,
    averaged_steps,
)
from .names import count_of, in_words
from .registry import DDP

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
    UnusedReason.IN_FORWARD: 'return its loss from forward, and let the '
    'training do the backward',
}
_NOT_REENTRANT = (
    'replace the reentrant checkpoints with the hook of the options; where '
    'code of yours calls torch.utils.checkpoint, pass use_reentrant=False'
)

# What --fix does.
_SETTINGS = 'set the flags of the model wrapper that work'
_CHECKPOINTS = 'make the checkpoints without reentrance, by a hook'

DDP001 = DDP.declare(
    'DDP001',
    title='a parameter never gets a gradient',
    severity=Severity.ERROR,
    remedy=_REMEDIES[UnusedReason.NEVER_USED],
    fix=_SETTINGS,
)
DDP002 = DDP.declare(
    'DDP002',
    title='a parameter of a reentrant checkpoint is ready twice',
    severity=Severity.ERROR,
    remedy=_NOT_REENTRANT,
    fix=_SETTINGS,
)
DDP003 = DDP.declare(
    'DDP003',
    title='gradients are silently wrong',
    severity=Severity.ERROR,
    remedy=_NOT_REENTRANT,
    fix=_CHECKPOINTS,
)
DDP004 = DDP.declare(
    'DDP004',
    title='a reentrant checkpoint keeps parameters from being trained',
    severity=Severity.ERROR,
    remedy=_NOT_REENTRANT,
    fix=_CHECKPOINTS,
)
DDP005 = DDP.declare(
    'DDP005',
    title='find_unused_parameters is needless',
    severity=Severity.WARNING,
    remedy='remove it, if other batches use the same parameters',
)
DDP006 = DDP.declare(
    'DDP006',
    title='static_graph is needless',
    severity=Severity.WARNING,
    remedy='remove it, if other batches use the same parameters',
)
DDP007 = DDP.declare(
    'DDP007',
    title='a parameter gets a gradient from some batches only',
    severity=Severity.ERROR,
    remedy=_REMEDIES[UnusedReason.BRANCH_NOT_TAKEN],
    fix=_SETTINGS,
)
DDP008 = DDP.declare(
    'DDP008',
    title='static_graph, but steps use parameters differently, or accumulate',
    severity=Severity.ERROR,
    remedy='remove static_graph, or accumulative_counts; where a parameter is '
    'returned from forward and is in no loss, return it detached',
    fix=_SETTINGS,
)
DDP009 = DDP.declare(
    'DDP009',
    title='a parameter is used outside of forward',
    severity=Severity.ERROR,
    remedy="use them in forward(mode='loss')",
    fix=_SETTINGS,
)
DDP010 = DDP.declare(
    'DDP010',
    title='gradients that DDP does not average',
    severity=Severity.ERROR,
    remedy='let all losses be part of one backward of what forward returns, '
    'and the optimizer step after it; make and unfreeze parameters in '
    '__init__, before the model is wrapped; scale what an embedding returns '
    'instead of max_norm',
)
DDP011 = DDP.declare(
    'DDP011',
    title='forward returns losses in a container that DDP does not open',
    severity=Severity.ERROR,
    remedy='return a dict, list or tuple, no subclass of one and no object; '
    'or let mmext.DistributedDataParallel wrap the model, which opens all',
)
DDP012 = DDP.declare(
    'DDP012',
    title='lazy parameters, which DDP refuses',
    severity=Severity.ERROR,
    remedy='give the number of inputs: nn.Linear for nn.LazyLinear, and so on',
)
DDP013 = DDP.declare(
    'DDP013',
    title='a gradient is sparse, dense or missing where DDP expects another',
    severity=Severity.ERROR,
    remedy='set sparse=False in the embedding; else use it in every step, as '
    'an embedding only, and no sparse gradients elsewhere',
)


@dataclass
class _Use:
    """In which batches a parameter had a gradient."""

    used: dict[str, None]
    unused: dict[str, UnusedParameter]


def sync_findings(
    proof: DryRun,
    current: SyncSettings,
    table: OutcomeTable,
    options: ConfigOptions,
) -> Iterator[Finding]:
    """Findings about unused parameters, checkpoints and the two flags."""
    if proof.lazy:
        yield DDP012.finding(
            f'{count_of(proof.lazy)} without a shape before the first '
            f'forward: {", ".join(proof.lazy)}; DDP refuses the model when it '
            'is wrapped, and the optimizer is built with them, too; nothing '
            'else could be tried',
            names=proof.lazy,
        )
    if not proof.is_telling:
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
        proof: DryRun,
        current: SyncSettings,
        table: OutcomeTable,
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
                fewer = checkpoints is Checkpoints.NO_REENTRANT
                if fewer and self.options.keeps_reentrant:
                    continue
                if self.table.row(settings, checkpoints).is_ok:
                    found = self.options.settings(settings)
                    if fewer:
                        found |= self.options.without_reentrant()
                    return found
        return {}

    def _by_search(self) -> dict[str, Any]:
        """The flag as the other way, with its cost, where it works."""
        options = self.settings_for(SEARCH)
        if not options:
            return {}
        return {
            'options': options,
            'other_way': 'set find_unused_parameters=True, and leave the '
            'model as it is; cost: in each step a walk over '
            f'{self.table.cost.nodes} nodes of the graph and a small '
            'reduction, and a parameter that stops to get a gradient is not '
            'noticed any more',
        }

    def call_site(self, names: Any) -> str:
        """Where the checkpoint of some parameters is called."""
        usages = self.proof.usages()
        sites = [u.call_sites.get(name) for u in usages for name in names]
        sites += [u.reentrant.get(name) for u in usages for name in names]
        return next(filter(None, sites), '')

    def untrained(self) -> Iterator[Finding]:
        """What a reentrant checkpoint keeps from being trained."""
        names = [
            name
            for name, use in self.uses.items()
            if any(
                unused.reason is UnusedReason.CHECKPOINT_INPUT
                for unused in use.unused.values()
            )
        ]
        if not names:
            return
        site = self.call_site(names)
        yield DDP004.finding(
            f'without a gradient, so not trained: '
            f'{count_of(names)} in {self.words(names)}; the input of the '
            'reentrant '
            'checkpoint needs no gradient, as what comes before is frozen'
            + (f' ({site})' if site else ''),
            names=tuple(names),
            options=self.options.without_reentrant(),
        )

    def unused(self) -> Iterator[Finding]:
        """What no batch gives a gradient, by its reason."""
        groups: dict[UnusedReason, dict[str, UnusedParameter]] = {}
        for name, use in self.uses.items():
            if use.used or not use.unused:
                continue
            best = _best_reason(use.unused)
            if best.reason is not UnusedReason.CHECKPOINT_INPUT:
                groups.setdefault(best.reason, {})[name] = best
        for reason, uses in groups.items():
            first = next(iter(uses.values()))
            about = ', '.join(filter(None, (first.detail, first.location)))
            effect = (
                'costs memory and is hidden by the settings'
                if self.searched
                else 'DDP stops at the second step'
            )
            yield DDP001.finding(
                f'{count_of(list(uses), "trainable parameter")} in '
                f'{self.words(list(uses))}: {reason.value}'
                + (f' ({about})' if about else '')
                + f', so without any gradient; {effect}',
                severity=Severity.WARNING if self.searched else Severity.ERROR,
                remedy=_REMEDIES[reason] + ' (no cost in a step)',
                names=tuple(uses),
                **({} if self.searched else self._by_search()),
            )

    def data_dependent(self) -> Iterator[Finding]:
        """What only some batches give a gradient, by those that do not."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, use in self.uses.items():
            if use.used and use.unused:
                groups.setdefault(tuple(use.unused), []).append(name)
        static, search = self.current.static_graph, self.searched
        counts = [s.usage.counts() for s in averaged_steps(self.proof)]
        for kinds, names in groups.items():
            use = self.uses[names[0]]
            place = _best_reason(use.unused).location
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
            if not search and all(c.get(n) for c in counts for n in names):
                severity = Severity.WARNING
                effect += ', if it is the last of those that are accumulated'
            if not fine and kinds == ('empty',) and self.rare:
                severity = Severity.WARNING
                effect += f'; {self.rare}'
            yield DDP007.finding(
                f'without a gradient with {seen}, with one else: '
                f'{count_of(names)} in {self.words(names)}'
                + (f' ({place})' if place else '')
                + f'; {effect}',
                severity=severity,
                names=tuple(names),
                batches=kinds,
                **({} if fine else self._by_search()),
            )

    def of_outcome(self) -> Iterator[Finding]:
        """What checkpoints do to the settings in use."""
        verdict = self.table.current
        names = verdict.names
        where = {'names': names, 'batches': (verdict.kind,)}
        site = self.call_site(names)
        at = f' ({site})' if site else ''
        what = f'{count_of(names)} in {self.words(names)}' if names else ''
        # What depends on the data has been said.
        changing = {n for n, u in self.uses.items() if u.used and u.unused}
        accumulates = verdict.outcome is Outcome.ACCUMULATED
        unopened = self._unopened()
        if unopened is not None:
            yield unopened
        elif verdict.outcome is Outcome.DIVERGED and self._is_local(names):
            yield DDP010.finding(
                f'what a process changes stays its own, and the replicas '
                f'drift apart without an error in PyTorch: {what}; '
                f'{self._why_local(names)}',
                **where,
            )
        elif verdict.outcome is Outcome.UNEXPECTED:
            yield DDP013.finding(
                f'the gradient of {what} is sparse, dense or missing where '
                'DDP expects another, which is an error in the backward',
                **where,
            )
        elif verdict.outcome is Outcome.DIVERGED:
            yield DDP003.finding(
                f'the gradients of {what} are silently wrong: a '
                f'reentrant checkpoint{at} runs them twice in a step, DDP '
                'averages after the first time, and the replicas drift apart '
                'without an error',
                options=self.options.without_reentrant(),
                **where,
            )
        elif verdict.outcome is Outcome.READY_TWICE:
            yield self._ready_twice(what, at, where)
        elif accumulates or (
            self.current.static_graph and not changing.issuperset(names)
        ):
            why = f'not all steps use {what} in the same way'
            if accumulates:
                why = f'the gradients of {self.options.accumulated} batches '
                why += 'are accumulated before any was averaged'
            yield DDP008.finding(
                f'static_graph=True, but {why}, which ends the training',
                key=self.options.key_of(STATIC_GRAPH),
                options=self.settings_for(NO_SEARCH, SEARCH),
                **where,
            )

    def _unopened(self) -> Finding | None:
        """A container that is not opened, where that makes a difference."""
        kinds = list(
            dict.fromkeys(k for u in self.proof.usages() for k in u.unopened)
        )
        if not kinds or not self.searched:
            return None
        ours = self.options.uses_our_wrapper
        effect = (
            'static_graph then averages nothing, and the replicas drift apart '
            'without an error'
            if self.current.static_graph
            else 'find_unused_parameters then takes used parameters for '
            'unused, or waits for unused ones'
        )
        return DDP011.finding(
            f'forward returns losses in {", ".join(kinds)}, which DDP does '
            f'not open; {effect}'
            + ('; mmext.DistributedDataParallel opens it' if ours else ''),
            severity=Severity.WARNING if ours else Severity.ERROR,
        )

    def _is_local(self, names: Any) -> bool:
        """Whether it is not a reentrant checkpoint that hides gradients."""
        hidden = {n for u in self.proof.usages() for n in u.reentrant}
        return not hidden.intersection(names)

    def _why_local(self, names: Any) -> str:
        usages = self.proof.usages()
        for usage in usages:
            for name in usage.stepped.keys() & set(names):
                return usage.stepped[name]
        if any(set(u.by_hand).intersection(names) for u in usages):
            return (
                'they are set by hand (torch.autograd.grad), without a '
                'backward that DDP could hear'
            )
        known = set(usages[0].names)
        if not known.issuperset(names) or any(u.late for u in usages):
            return (
                'they are made, replaced or unfrozen after the model was '
                'wrapped'
            )
        return (
            'there is more than one backward for a forward, of which DDP '
            'averages the first'
        )

    def _ready_twice(
        self, what: str, at: str, where: dict[str, Any]
    ) -> Finding:
        outside = {
            n for u in self.proof.usages() for n in u.outside_forward
        }.intersection(where['names'])
        if outside:
            return DDP009.finding(
                f'used outside of forward, where '
                f'find_unused_parameters does not look: {what}; marked ready '
                'twice, which is an error in the first backward',
                options=self.settings_for(NO_SEARCH),
                **where,
            )
        why = 'the module is used more than once in a step'
        if self.current.find_unused_parameters:
            why = 'find_unused_parameters=True does not look into it'
        return DDP002.finding(
            f'marked ready twice, which is an error in the backward: '
            f'{what}, in a reentrant checkpoint{at}; {why}',
            options=self.settings_for(self.current, NO_SEARCH),
            **where,
        )

    def needless(self) -> Iterator[Finding]:
        """Flags without which all is well."""
        plain = self.table.row(NO_SEARCH)
        if not plain.is_ok or not self.table.current.is_ok:
            return
        cost = self.table.cost
        if self.current.static_graph:
            yield DDP006.finding(
                'static_graph=True is needless: every step gives '
                'every parameter one gradient; it hides it when one stops to '
                'get any, and forbids to accumulate gradients from the start',
                key=self.options.key_of(STATIC_GRAPH),
            )
        elif self.current.find_unused_parameters:
            yield DDP005.finding(
                'find_unused_parameters=True is needless: every '
                'parameter gets a gradient from all batches that were tried; '
                f'each step walks over {cost.nodes} nodes and reduces a map '
                'of used parameters, reentrant checkpoints are forbidden, '
                'and parameters that lose their gradient are hidden',
                key=self.options.key_of(FLAG),
            )


def _uses(proof: DryRun) -> dict[str, _Use]:
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


def _best_reason(unused: dict[str, UnusedParameter]) -> UnusedParameter:
    """The one that says most."""
    return next(
        (
            use
            for use in unused.values()
            if use.reason is not UnusedReason.NEVER_USED
        ),
        next(iter(unused.values())),
    )
