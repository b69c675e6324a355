"""What a dry run shows of the averaging of gradients."""

from collections.abc import Iterator, Sequence
from typing import Any

from ...config import FLAG, join_key
from ...ddp import (
    AVERAGE_ALL,
    KEEP_DENSE,
    LAYOUT_REMEDY,
    NO_SEARCH,
    OUTSIDE_FORWARD,
    REGISTER,
    REPLACE_CHECKPOINTS,
    SEARCH,
    USE_IN_FORWARD,
    Outcome,
    SyncSettings,
    UnusedReason,
    reasons_in,
    remedy_for,
)
from ...findings import Finding, Severity
from ..dry_run.run import STATIC_GRAPH, ConfigOptions, DryRun
from ..trainable import TrainableChange
from .registry import DDP, count_of, in_words
from .subject import Subject

# What --fix does.
_SETTINGS = 'set the flags of the model wrapper that work'
_CHECKPOINTS = 'make the checkpoints without reentrance, by a hook'

DDP001 = DDP.declare(
    'DDP001',
    symptoms=(
        'Expected to have finished reduction in the prior iteration before '
        'starting a new one',
    ),
    title='a parameter never gets a gradient',
    severity=Severity.ERROR,
    remedy=remedy_for([UnusedReason.NEVER_USED]),
    fix=_SETTINGS,
)
DDP002 = DDP.declare(
    'DDP002',
    symptoms=('Expected to mark a variable ready only once',),
    title='a parameter of a reentrant checkpoint is ready twice',
    severity=Severity.ERROR,
    remedy=REPLACE_CHECKPOINTS,
    fix=_SETTINGS,
)
DDP003 = DDP.declare(
    'DDP003',
    title='gradients are silently wrong',
    severity=Severity.ERROR,
    remedy=REPLACE_CHECKPOINTS,
    fix=_CHECKPOINTS,
)
DDP004 = DDP.declare(
    'DDP004',
    title='a reentrant checkpoint keeps parameters from being trained',
    severity=Severity.ERROR,
    remedy=REPLACE_CHECKPOINTS,
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
    remedy=remedy_for([UnusedReason.BRANCH_NOT_TAKEN]),
    fix=_SETTINGS,
)
DDP008 = DDP.declare(
    'DDP008',
    symptoms=('Your training graph has changed in this iteration',),
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
    remedy=USE_IN_FORWARD,
    fix=_SETTINGS,
)
DDP010 = DDP.declare(
    'DDP010',
    title='gradients that DDP does not average',
    severity=Severity.ERROR,
    remedy=AVERAGE_ALL,
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
    symptoms=(
        "Modules with uninitialized parameters can't be used with",
        'No support for sparse tensors.',
    ),
    title='lazy, sparse or quantized tensors, which DDP refuses',
    severity=Severity.ERROR,
    remedy='give the number of inputs: nn.Linear for nn.LazyLinear, and so '
    f'on; of a sparse or quantized buffer: {KEEP_DENSE}',
)
DDP013 = DDP.declare(
    'DDP013',
    title='a gradient is sparse, dense or missing where DDP expects another',
    severity=Severity.ERROR,
    remedy=LAYOUT_REMEDY,
)

DDP014 = DDP.declare(
    'DDP014',
    title='a hook changes which parameters are trained',
    severity=Severity.ERROR,
    remedy='set which parameters are trained before the model is built, and '
    'train the next phase as a training of its own, with load_from',
)


def hook_findings(
    subject: Subject, changes: Sequence[TrainableChange], current: SyncSettings
) -> Iterator[Finding]:
    """Parameters that a hook freezes or unfreezes after DDP has the model."""
    for change in () if subject.world == 1 else changes:
        effects = []
        if change.unfrozen:
            effects.append(
                f'trains {count_of(change.unfrozen)} that DDP does not '
                'average: the replicas drift apart without an error in '
                f'PyTorch ({change.unfrozen[0]}, ...)'
            )
        if change.frozen and not current.find_unused_parameters:
            effects.append(
                f'freezes {count_of(change.frozen)} whose gradients DDP '
                f'waits for, which ends the training ({change.frozen[0]}, '
                '...)'
            )
        if effects:
            yield DDP014.finding(
                f'{change.hook} ({change.when}) {" and ".join(effects)}',
                key=join_key(change.path),
                severity=Severity.ERROR if subject.world else Severity.WARNING,
                names=(*change.unfrozen, *change.frozen),
                remedy=''
                if change.unfrozen
                else f'set {FLAG}=True, or train the next phase as a training '
                'of its own, with load_from',
            )


def sync_findings(
    dry_run: DryRun, current: SyncSettings, options: ConfigOptions
) -> Iterator[Finding]:
    """Findings about unused parameters, checkpoints and the two flags."""
    if dry_run.lazy:
        yield DDP012.finding(
            f'{count_of(dry_run.lazy, "tensor")} without a shape before the '
            f'first forward: {", ".join(dry_run.lazy)}; DDP refuses the model '
            'when it is wrapped, and the optimizer is built with them, too; '
            'nothing else could be tried',
            names=dry_run.lazy,
        )
    if not dry_run.is_telling:
        return
    say = _SyncFindings(dry_run, current, options)
    yield from say.foreign()
    yield from say.untrained()
    yield from say.unused()
    yield from say.data_dependent()
    yield from say.of_outcome()
    yield from say.needless()


class _SyncFindings:
    """The findings, each by a method of its own."""

    def __init__(
        self, dry_run: DryRun, current: SyncSettings, options: ConfigOptions
    ) -> None:
        self.dry_run, self.current, self.options = dry_run, current, options
        self.explanation = dry_run.explain(current)
        # Functions of the largest graph, which a search walks over.
        steps = dry_run.averaged_steps()
        self.nodes = max((step.nodes for step in steps), default=0)
        self.usages = dry_run.usages()
        self.reasons = reasons_in(self.usages)
        self.names = list(
            dict.fromkeys(n for u in self.usages for n in u.names)
        )
        # Kinds of batches with, and without, a gradient of each parameter.
        self.used: dict[str, dict[str, None]] = {}
        self.lacking: dict[str, dict[str, None]] = {}
        for step in dry_run.all_steps():
            for name, count in step.usage.counts().items():
                if count:
                    self.used.setdefault(name, {})[step.kind] = None
                elif name in step.usage.unused:
                    self.lacking.setdefault(name, {})[step.kind] = None
        self.searched = current.find_unused_parameters or current.static_graph

    def count(self, names: Any, what: str = 'parameter') -> str:
        """How many, and where, in words."""
        return f'{count_of(names, what)} in {in_words(names, self.names)}'

    def settings_for(self, *wanted: SyncSettings) -> dict[str, Any]:
        """Options for the first of some settings that works."""
        for settings in wanted:
            if self.explanation.works(settings):
                return self.options.settings(settings)
            hook = self.options.without_reentrant()
            if hook and self.explanation.works(settings, reentrant=False):
                return self.options.settings(settings) | hook
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
            f'{self.nodes} nodes of the graph and a small '
            'reduction, and a parameter that stops to get a gradient is not '
            'noticed any more',
        }

    def call_site(self, names: Any) -> str:
        """Where the checkpoint of some parameters is called, in brackets."""
        sites = [u.call_sites.get(name) for u in self.usages for name in names]
        sites += [u.reentrant.get(name) for u in self.usages for name in names]
        site = next(filter(None, sites), '')
        return f' ({site})' if site else ''

    def foreign(self) -> Iterator[Finding]:
        """Parameters of the optimizer alone that no step gives a gradient."""
        local = {name for usage in self.usages for name in usage.stepped}
        names = [n for n in self.dry_run.foreign if n not in local]
        if names:
            yield DDP010.finding(
                'in the optimizer, and not in the model, so DDP would not '
                f'average their gradients: {self.count(names)}; no step '
                'gives them any, so they stay as they are',
                severity=Severity.WARNING,
                names=tuple(names),
                remedy=REGISTER,
            )

    def untrained(self) -> Iterator[Finding]:
        """What a reentrant checkpoint keeps from being trained."""
        names = tuple(
            dict.fromkeys(
                name
                for usage in self.usages
                for name, unused in usage.unused.items()
                if unused.reason is UnusedReason.CHECKPOINT_INPUT
            )
        )
        if names:
            yield DDP004.finding(
                f'without a gradient, so not trained: {self.count(names)}; '
                'the input of the reentrant checkpoint needs no gradient, as '
                f'what comes before is frozen{self.call_site(names)}',
                names=names,
                options=self.options.without_reentrant(),
            )

    def unused(self) -> Iterator[Finding]:
        """What no batch gives a gradient, by its reason."""
        groups: dict[UnusedReason, list[str]] = {}
        for name, unused in self.reasons.items():
            if name not in self.used:
                groups.setdefault(unused.reason, []).append(name)
        groups.pop(UnusedReason.CHECKPOINT_INPUT, None)
        effect = 'DDP stops at the second step'
        if self.searched:
            effect = 'costs memory and is hidden by the settings'
        for reason, names in groups.items():
            yield DDP001.finding(
                f'{self.count(names, "trainable parameter")}: '
                f'{self.reasons[names[0]].in_words()}, so without any '
                f'gradient; {effect}',
                severity=Severity.WARNING if self.searched else Severity.ERROR,
                remedy=f'{remedy_for([reason])} (no cost in a step)',
                names=tuple(names),
                **({} if self.searched else self._by_search()),
            )

    def data_dependent(self) -> Iterator[Finding]:
        """What only some batches give a gradient, by those that do not."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, kinds in self.lacking.items():
            if name in self.used:
                groups.setdefault(tuple(kinds), []).append(name)
        static, search = self.current.static_graph, self.searched
        rare = self.options.rarely_empty
        counts = [s.usage.counts() for s in self.dry_run.averaged_steps()]
        for kinds, names in groups.items():
            location = self.reasons[names[0]].location
            seen = f'batches of kind {", ".join(kinds)}'
            if not self.used[names[0]].keys().isdisjoint(kinds):
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
            if not fine and kinds == ('empty',) and rare:
                severity = Severity.WARNING
                effect += f'; {rare}'
            yield DDP007.finding(
                f'without a gradient with {seen}, with one else: '
                f'{self.count(names)}{f" ({location})" if location else ""}; '
                f'{effect}',
                severity=severity,
                names=tuple(names),
                batches=kinds,
                **({} if fine else self._by_search()),
            )

    def of_outcome(self) -> Iterator[Finding]:
        """What happens first with the settings in use."""
        kinds = dict.fromkeys(k for u in self.usages for k in u.unopened)
        if kinds and self.searched:
            yield self._unopened(', '.join(kinds))
            return
        verdict, usages = self.explanation.current, self.usages
        names, failure = verdict.names, verdict.failure
        at, what = self.call_site(names), self.count(names) if names else ''
        options, key, remedy = {}, '', ''
        in_checkpoints = {n for u in usages for n in u.reentrant}
        outside = {n for u in usages for n in u.outside_forward}
        if failure is Outcome.OK:
            return
        if failure is Outcome.REFUSED and names:
            # MMEngine's wrapper sends no buffers, by default.
            yield DDP012.finding(
                f'sparse or quantized: {", ".join(names)}; DDP cannot send '
                'them to the other processes when it wraps the model, as '
                'mmext.DistributedDataParallel does with all buffers',
                severity=Severity.ERROR
                if self.options.uses_our_wrapper
                else Severity.WARNING,
                names=names,
            )
            return
        if failure is Outcome.UNEXPECTED:
            rule = DDP013
            text = (
                f'the gradient of {what} is sparse, dense or missing where '
                'DDP expects another, which is an error in the backward'
            )
        elif failure is Outcome.DIVERGED and in_checkpoints.isdisjoint(names):
            rule, text = DDP010, self._local(names)
            if set(names) <= {*self.dry_run.foreign}:
                remedy = REGISTER
        elif failure is Outcome.DIVERGED:
            rule, options = DDP003, self.options.without_reentrant()
            text = (
                f'the gradients of {what} are silently wrong: a reentrant '
                f'checkpoint{at} runs them twice in a step, DDP averages '
                'after the first time, and the replicas drift apart without '
                'an error'
            )
        elif failure is Outcome.READY_TWICE and outside.intersection(names):
            rule, options = DDP009, self.settings_for(NO_SEARCH)
            text = (
                f'{OUTSIDE_FORWARD}: {what}; marked ready twice, which is an '
                'error in the first backward'
            )
        elif failure is Outcome.READY_TWICE:
            rule = DDP002
            options = self.settings_for(self.current, NO_SEARCH)
            why = 'the module is used more than once in a step'
            if self.current.find_unused_parameters:
                why = 'find_unused_parameters=True does not look into it'
            text = (
                'marked ready twice, which is an error in the backward: '
                f'{what}, in a reentrant checkpoint{at}; {why}'
            )
        elif not self.current.static_graph or (
            failure is not Outcome.ACCUMULATED
            and all(n in self.used and n in self.lacking for n in names)
        ):
            # What has no gradient, or not with all data, has been said.
            return
        else:
            rule, key = DDP008, self.options.key_of(STATIC_GRAPH)
            options = self.settings_for(NO_SEARCH, SEARCH)
            why = f'not all steps use {what} in the same way'
            if failure is Outcome.ACCUMULATED:
                why = f'the gradients of {self.options.accumulated} batches '
                why += 'are accumulated before any was averaged'
            text = f'static_graph=True, but {why}, which ends the training'
        yield rule.finding(
            text,
            key=key,
            remedy=remedy,
            names=names,
            batches=(verdict.batches,),
            options=options,
        )

    def _unopened(self, kinds: str) -> Finding:
        """A container that is not opened, where that makes a difference."""
        effect = (
            'find_unused_parameters then takes used parameters for unused, '
            'or waits for unused ones'
        )
        if self.current.static_graph:
            effect = (
                'static_graph then averages nothing, and the replicas drift '
                'apart without an error'
            )
        severity = Severity.ERROR
        if self.options.uses_our_wrapper:
            severity = Severity.WARNING
            effect += '; mmext.DistributedDataParallel opens it'
        return DDP011.finding(
            f'forward returns losses in {kinds}, which DDP does not open; '
            f'{effect}',
            severity=severity,
        )

    def _local(self, names: Any) -> str:
        """Effect and reason for parameters whose gradients stay local."""
        idle = {n for s in self.dry_run.all_steps() for n in s.idle}
        groups: dict[tuple[str, str], list[str]] = {}
        for name in names:
            effect = (
                'what a process changes stays its own, and the replicas '
                'drift apart without an error in PyTorch'
            )
            if name.removesuffix(' (new)') in idle:
                effect = 'in no optimizer, so not trained at all'
            key = effect, self._why_local(name)
            groups.setdefault(key, []).append(name)
        return '; '.join(
            f'{effect}: {self.count(group)}; {why}'
            for (effect, why), group in groups.items()
        )

    def _why_local(self, name: str) -> str:
        """Why the gradient of a parameter stays that of a process."""
        for usage in self.usages:
            if name in usage.stepped:
                return usage.stepped[name]
        if any(name in usage.by_hand for usage in self.usages):
            return (
                'they are set by hand (torch.autograd.grad), without a '
                'backward that DDP could hear'
            )
        if name not in self.usages[0].names or any(
            name in usage.late for usage in self.usages
        ):
            return (
                'they are made, replaced or unfrozen after the model was '
                'wrapped'
            )
        return (
            'there is more than one backward for a forward, of which DDP '
            'averages the first'
        )

    def needless(self) -> Iterator[Finding]:
        """Flags without which all is well."""
        if not self.explanation.works(NO_SEARCH) or (
            not self.explanation.current.works
        ):
            return
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
                f'each step walks over {self.nodes} nodes and reduces a map '
                'of used parameters, reentrant checkpoints are forbidden, '
                'and parameters that lose their gradient are hidden',
                key=self.options.key_of(FLAG),
            )
