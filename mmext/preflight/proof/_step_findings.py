"""What a proof says about steps themselves: errors, losses, batch norms."""

import textwrap
from collections.abc import Iterator

import msgspec

from ..findings import PreflightFinding, Severity
from ._name_groups import count_of, in_words
from .facts import Crash, KeptGraph, LossTerm, Proof, StepProof

__all__ = ['step_findings']

_KEPT_ERRORS = ('second time', 'modified by an inplace operation')
_DETACH = 'keep it detached: value.detach()'
_MAX_TEXT = 200
_MAX_NORMS = 3


def step_findings(proof: Proof) -> Iterator[PreflightFinding]:
    """Findings that hold for one process as for many.

    Args:
        proof: What was seen.

    Yields:
        The findings.
    """
    for crash in proof.crashes:
        rare = proof.config is not None and bool(proof.config.rarely_empty)
        yield _crash(crash, rare)
    yield from _kept(proof)
    yield from _not_finite(proof)
    yield from _loss_keys(proof)
    yield from _zero_losses(proof)
    yield from _norms(proof)


def _crash(crash: Crash, rare: bool) -> PreflightFinding:
    text = textwrap.shorten(crash.message, _MAX_TEXT, placeholder=' ...')
    inside = f' in {" > ".join(crash.modules)}' if crash.modules else ''
    at = f' ({crash.place})' if crash.place else ''
    remedy = 'correct it there'
    severity = Severity.ERROR
    if any(known in crash.message for known in _KEPT_ERRORS):
        remedy = f'a step uses what an earlier one has computed; {_DETACH}'
    elif crash.kind == 'empty':
        severity = Severity.WARNING if rare else Severity.ERROR
        remedy = (
            'let the model train on a batch without any object, or keep such '
            'samples out of the training: filter_cfg=dict('
            'filter_empty_gt=True) of the data set'
        )
    return PreflightFinding(
        rule='STEP001',
        severity=severity,
        message=f'step {crash.step + 1} with a batch of kind {crash.kind!r} '
        f'ends in its {crash.phase} with {crash.error}: {text}{inside}{at}',
        remedy=remedy,
        names=crash.modules,
        batches=(crash.kind,),
    )


def _kept(proof: Proof) -> Iterator[PreflightFinding]:
    """Graphs on modules, each once, at their worst."""
    found: dict[str, tuple[KeptGraph, Severity, list[str]]] = {}
    for kind, steps in proof.steps.items():
        failed = any(
            crash.kind == kind
            and any(known in crash.message for known in _KEPT_ERRORS)
            for crash in proof.crashes
        )
        counts: dict[str, int] = {}
        for step in steps:
            for kept in step.kept:
                severity = Severity.INFO
                if kept.count > counts.get(kept.place, kept.count):
                    severity = Severity.WARNING
                if kept.used_again:
                    severity = Severity.ERROR if failed else Severity.WARNING
                counts[kept.place] = kept.count
                old = found.get(kept.place)
                kinds = [*(old[2] if old else []), kind]
                if old is None or severity > old[1]:
                    found[kept.place] = (kept, severity, kinds)
                else:
                    old[2].append(kind)
    for place, (kept, severity, kinds) in found.items():
        effect = {
            Severity.ERROR: 'the next step uses it, and fails',
            Severity.WARNING: 'the next step uses it, through a graph that '
            'grows'
            if kept.used_again
            else 'more with each step, so memory runs out',
            Severity.INFO: 'which keeps memory of the step',
        }[severity]
        yield PreflightFinding(
            rule='STEP002',
            severity=severity,
            message=f'{place} keeps {count_of(range(kept.count), "tensor")} '
            f'with the graph of a step ({kept.function}) after it; {effect}',
            remedy=_DETACH,
            names=(place,),
            batches=tuple(dict.fromkeys(kinds)),
        )


def _not_finite(proof: Proof) -> Iterator[PreflightFinding]:
    """The first step of each kind that has one, said once if it is the same.

    Steps after it are spoiled, as there is no optimizer step without a
    finite gradient.
    """
    found: dict[str, tuple[PreflightFinding, list[StepProof]]] = {}
    for steps in proof.steps.values():
        for step in steps:
            finding = _bad_values(step)
            if finding is not None:
                same = found.setdefault(finding.message, (finding, []))
                same[1].append(step)
                break
    for finding, steps in found.values():
        at = ', '.join(f'step {s.step + 1} of {s.kind!r}' for s in steps)
        yield msgspec.structs.replace(
            finding,
            message=f'{finding.message} (first in {at})',
            batches=tuple(step.kind for step in steps),
        )


def _bad_values(step: StepProof) -> PreflightFinding | None:
    bad = [repr(term.name) for term in step.losses if not term.finite]
    if bad:
        cause = 'the outputs of all modules are finite, so look at the loss'
        if step.bad_module:
            cause = (
                f'the first module to return such a value is {step.bad_module}'
            )
        return PreflightFinding(
            rule='STEP003',
            severity=Severity.ERROR,
            message=f'infinite or NaN: {", ".join(bad)}; {cause}',
            remedy='look at what divides, takes a logarithm or a root '
            'there, and at the scale of its input',
            names=tuple(filter(None, (step.bad_module,))),
        )
    if step.bad_gradients:
        return PreflightFinding(
            rule='STEP004',
            severity=Severity.ERROR,
            message='infinite or NaN: the gradients of '
            f'{count_of(step.bad_gradients)}, though the losses are finite; '
            'the first that the backward comes to is '
            f'{step.bad_gradients[0]}',
            remedy='look at what follows it in the forward: the root or the '
            'norm of 0, a division by 0 in torch.where',
            names=step.bad_gradients,
        )
    return None


def _terms(proof: Proof) -> dict[str, list[LossTerm]]:
    terms: dict[str, list[LossTerm]] = {}
    for step in proof.all_steps():
        for term in step.losses:
            terms.setdefault(term.name, []).append(term)
    return terms


def _loss_keys(proof: Proof) -> Iterator[PreflightFinding]:
    """Keys that MMEngine treats in another way than they look."""
    for name, terms in _terms(proof).items():
        grads = [term.requires_grad for term in terms]
        if not terms[0].summed and any(grads):
            yield PreflightFinding(
                rule='STEP005',
                severity=Severity.WARNING,
                message=f'forward returns {name!r} with a gradient, but the '
                "letters 'loss' are not in its key, so it is not added to "
                'the loss',
                remedy="put 'loss' into the key, or return it detached",
                names=(name,),
            )
        elif terms[0].summed and not any(grads):
            yield PreflightFinding(
                rule='STEP006',
                severity=Severity.WARNING,
                message=f"forward returns {name!r}, which has 'loss' in its "
                'key and is added to the loss, but has no gradient: it only '
                'changes the number in the log',
                remedy="take 'loss' out of the key of a value that is only "
                'logged; else look for what detaches it',
                names=(name,),
            )


def _zero_losses(proof: Proof) -> Iterator[PreflightFinding]:
    """Parameters of which only losses that are 0 in all steps know."""
    zero: set[str] = set()
    others: set[str] = set()
    keys: dict[str, None] = {}
    for name, terms in _terms(proof).items():
        if not terms[0].summed:
            continue
        is_zero = all(term.value == 0 for term in terms)
        for term in terms:
            (zero if is_zero else others).update(term.parameters)
        if is_zero and any(term.requires_grad for term in terms):
            keys[name] = None
    hidden = {name for usage in proof.usages() for name in usage.reentrant}
    names = tuple(sorted(zero - others - hidden))
    if not names or not keys:
        return
    everything = [name for usage in proof.usages() for name in usage.names]
    where = ', '.join(name or 'the model' for name in proof.zero_weights)
    weights = f'; loss_weight is 0 in {where}' if proof.zero_weights else ''
    yield PreflightFinding(
        rule='STEP007',
        severity=Severity.WARNING,
        message=f'{count_of(names)} in {in_words(names, everything)} '
        f'only get gradients from {", ".join(map(repr, keys))}, which is 0 '
        f'in all steps, so they are not trained{weights}',
        remedy='give the loss a weight, or leave the parameters out',
        names=names,
    )


def _norms(proof: Proof) -> Iterator[PreflightFinding]:
    calls: dict[str, int] = {}
    updates: dict[str, int] = {}
    for step in proof.all_steps():
        for norm in step.norms:
            calls[norm.name] = max(calls.get(norm.name, 0), norm.calls)
            updates[norm.name] = max(updates.get(norm.name, 0), norm.updates)
    shared = [name for name, count in calls.items() if count > 1]
    again = [n for n in calls if calls[n] == 1 and updates[n] > 1]
    if shared:
        listed = ', '.join(
            f'{name} {calls[name]} times' for name in shared[:_MAX_NORMS]
        )
        more = len(shared) - _MAX_NORMS
        rest = f' and {more} more' if more > 0 else ''
        yield PreflightFinding(
            rule='NORM001',
            severity=Severity.WARNING,
            message='batch norm that runs more than once a step: '
            f'{listed}{rest}; each run normalises with statistics of its '
            'own, and evaluation with a mix of them',
            remedy='use one batch norm for each use, such as SepBN, or a '
            'norm without running statistics, such as GN',
            names=tuple(shared),
        )
    if again:
        yield PreflightFinding(
            rule='NORM002',
            severity=Severity.INFO,
            message=f'{count_of(again, "batch norm")} in activation '
            'checkpoints: running statistics change '
            f'{updates[again[0]]} times a step, as the backward runs them '
            'again',
            remedy='none is needed; it is as if momentum were larger',
            names=tuple(again),
        )
    if proof.sync_norms:
        yield PreflightFinding(
            rule='NORM003',
            severity=Severity.INFO,
            message=f'{count_of(proof.sync_norms, "SyncBatchNorm")} in the '
            'model, which is an ordinary batch norm in a single process',
            remedy='none is needed for a training of several processes; '
            "else use norm_cfg=dict(type='BN')",
            names=proof.sync_norms,
        )
