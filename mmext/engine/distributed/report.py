"""The errors of the wrapper, and how they are worded.

The text of a :class:`GradientSyncError` is made by :func:`format_sync_report`;
the reason of an unused parameter is worded in
:class:`mmext.checks.ddp.trace.UnusedReason`, what to do in
:mod:`mmext.checks.ddp.advice`.
"""

import dataclasses
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from torch import distributed as dist

from ...checks.ddp import (
    Advice,
    Outcome,
    StepUsage,
    SyncSettings,
    UnusedParameter,
    UnusedReason,
    find_advice,
    predict_outcome,
)
from .replicas import ReplicaSums, different_names
from .watch import lost_ranks, missing_ranks

_MAX_NAMES = 12
_HEAD = (
    'the gradients of this step cannot be averaged over the processes '
    '(find_unused_parameters={}, static_graph={}).'
)
_TWICE_BY_CHECKPOINT = 'marked ready twice by a reentrant checkpoint'
_TWICE = 'marked ready twice'
_OUTSIDE = (
    'used outside of forward, where find_unused_parameters does not look'
)
_CHANGED = (
    'used in this step, but not, or less often, in the first one, which '
    'static_graph does not allow'
)
_SILENT = (
    'PyTorch would not have noticed: the gradients of these parameters would '
    'have\nbeen wrong, and the weights of the processes would have drifted '
    'apart.'
)
_UNFROZEN = (
    'trainable now, but not when the model was wrapped: its gradient would '
    'never be averaged'
)


_DRIFT_HEAD = (
    'the replicas of the model drift apart: at this step of the optimizer '
    '{} differ between the processes'
)
_DRIFT_ADVICE = (
    'Let every loss be part of one backward of what forward returned; average '
    'what is computed by hand (torch.autograd.grad, p.grad = ...) with '
    'torch.distributed.all_reduce before the optimizer steps; and change '
    'weights in the same way in all processes.'
)
_OUT_OF_STEP = (
    'the processes are out of step: rank {} is at {}, rank {} at {}; all must '
    'run as many backwards and steps of the optimizer as the others'
)


class Doubt(str, Enum):
    """Why gradients may not be the same in all processes."""

    NONE = ''
    AGAIN = (
        'gradients were added after they had been averaged: there was more '
        'than one backward for a forward of the wrapper, or one without it'
    )
    NEVER = (
        'no backward has gone through what forward returned since it was '
        'called, so nothing was averaged'
    )
    NOT_PASSED = (
        'DDP has found no tensor with a gradient in what forward returned, '
        'which static_graph needs; return the losses in a dict, list or tuple'
    )


@dataclass(frozen=True)
class ReplicaReport:
    """What one process has at a step of the optimizer.

    Attributes:
        rank: The process.
        place: Which step of the optimizer, or which backward.
        doubt: Why it is in doubt.
        sums: Of weights and gradients.
    """

    rank: int
    place: str
    doubt: Doubt
    sums: ReplicaSums


def drift_of(reports: Sequence[ReplicaReport]) -> str:
    """The text of an error, empty if all replicas are the same."""
    first = reports[0]
    for other in reports[1:]:
        if other.place != first.place:
            return _OUT_OF_STEP.format(
                first.rank, first.place, other.rank, other.place
            )
    weights, gradients = different_names([r.sums for r in reports])
    if not weights and not gradients:
        return ''
    kinds = [
        f'the {kind} of {len(names)} parameter(s)'
        for kind, names in (('weights', weights), ('gradients', gradients))
        if names
    ]
    names = tuple(dict.fromkeys((*gradients, *weights)))
    lines = [_DRIFT_HEAD.format(' and '.join(kinds))]
    lines += [f'    {name}' for name in names[:_MAX_NAMES]]
    if len(names) > _MAX_NAMES:
        lines.append(f'    ... and {len(names) - _MAX_NAMES} more')
    doubts = dict.fromkeys(r.doubt.value for r in reports if r.doubt.value)
    lines += [_filled(doubt) for doubt in doubts]
    return '\n'.join([*lines, '', _filled(_DRIFT_ADVICE)])


class PeerError(RuntimeError):
    """Another process has failed, is gone, does not answer, or is elsewhere.

    The text names the rank, its host and process, and where it was last seen.
    """

    # What the preflight with several processes calls it.
    rank_outcome = 'lost'


# What Gloo says in a process when another one has ended, or does not come.
_PEER_TEXTS = (
    'Connection closed by peer',
    'Connection reset by peer',
    'Broken pipe',
    'Timed out waiting',
    'Operation timed out',
    'Socket closed',
    'gloo/transport',
)


def is_peer_error(error: BaseException) -> bool:
    """Whether an error is one of a collective, or of the store."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and not isinstance(error, PeerError)
        and any(text in str(error) for text in _PEER_TEXTS)
    )


def peer_gone(error: Exception) -> PeerError:
    """The error for a collective that another process did not come to."""
    missing = missing_ranks() or 'see the output of the others'
    text = str(error).strip()
    what = 'has closed its connection'
    if lost_ranks():
        what = 'has failed or ended'
    elif re.search('timed? ?out', text, re.IGNORECASE):
        what = 'does not answer within env_cfg.dist_cfg.timeout'
    return PeerError(
        f'another process {what}: {missing}. This one got: '
        f'{text.splitlines()[0] if text else type(error).__name__}'
    )


def peers_elsewhere(places: Sequence[tuple[int, int, bool]]) -> PeerError:
    """The error where processes are in other steps.

    ``places`` has, for each process, its rank, the number of its step, and
    whether it is at the end of its data.
    """
    shown = ', '.join(
        f'rank {rank} '
        + (f'at its end after {step} steps' if at_end else f'in step {step}')
        for rank, step, at_end in places
    )
    if any(at_end for _, _, at_end in places):
        return PeerError(
            'all processes must have the same number of batches, but one has '
            f'no more data while another is in a step: {shown}; let the '
            'sampler give each process as many (DefaultSampler with '
            'round_up=True), or train by iterations (IterBasedTrainLoop, '
            'where data begin anew). After as many steps, a process has left '
            'out the backward of one, which DDP does not allow'
        )
    return PeerError(
        'all processes must be in the same step when gradients are averaged, '
        f'got {shown}: a process has left out the backward of a step, which '
        'DDP does not allow; a loss that is to be skipped must be multiplied '
        'by 0, on all processes'
    )


def peer_failed(errors: Sequence[tuple[int, str]]) -> PeerError:
    """The error where others have failed: rank and text, empty if not."""
    failed = '; '.join(f'rank {rank}: {text}' for rank, text in errors if text)
    return PeerError(
        f'this process stops because another one failed in this step; {failed}'
    )


@dataclass(frozen=True)
class RankReport:
    """What one process knows about a step that cannot be averaged.

    Attributes:
        rank: The process.
        usage: The step traced again, None if it could not be.
        missing: Parameters without a gradient.
        twice: Parameters with more than one.
        unfrozen: Parameters that became trainable after wrapping.
        used_before: Parameters that had a gradient in an earlier step.
        frozen: Parameters that were frozen after wrapping.
        error: Text of the reducer's error, if there was one.
        trace_error: Why ``usage`` is None.
    """

    rank: int
    usage: StepUsage | None = None
    missing: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    unfrozen: tuple[str, ...] = ()
    used_before: frozenset[str] = frozenset()
    frozen: tuple[str, ...] = ()
    error: str = ''
    trace_error: str = ''


class GradientSyncError(RuntimeError):
    """The gradients of a step cannot be averaged over the processes.

    Args:
        message: For the user.
        reports: What each process knows, in the order of ranks.
    """

    rank_outcome = 'stopped'

    def __init__(
        self, message: str, reports: tuple[RankReport, ...] = ()
    ) -> None:
        super().__init__(message)
        self.reports = reports


def format_sync_report(
    reports: Sequence[RankReport], settings: SyncSettings
) -> str:
    """Which parameters, why, where, and what to do, from all processes."""
    reports = refine_reasons(reports)
    groups = _groups(reports, settings)
    ranks = {report.rank for report in reports}
    lines = [
        _HEAD.format(settings.find_unused_parameters, settings.static_graph)
    ]
    for group in groups:
        lines += ['', *_group_lines(group, ranks)]
    trace_errors = sorted({r.trace_error for r in reports if r.trace_error})
    lines += [f'\n{trace_error}' for trace_error in trace_errors]
    errors = sorted({r.error for r in reports if r.error})
    if not groups and errors:
        lines += ['', 'PyTorch says: ' + errors[0]]
    usages = [r.usage for r in reports if r.usage is not None]
    if usages:
        if _would_diverge(usages, settings):
            lines += ['', _SILENT]
        lines += _advice_lines(find_advice(usages, settings))
    return '\n'.join(lines)


def refine_reasons(reports: Sequence[RankReport]) -> list[RankReport]:
    """Refine reasons by what other processes and earlier steps did.

    "Never used" becomes "the branch was not taken" for what another process
    or an earlier step has used, and "frozen" for what needs no gradient any
    more.
    """
    used = set()
    for report in reports:
        if report.usage is not None:
            used |= {gradient.name for gradient in report.usage.ready}
        used |= report.used_before
    return [_refine(report, used) for report in reports]


def _refine(report: RankReport, used: set[str]) -> RankReport:
    if report.usage is None:
        return report
    unused = {
        name: UnusedParameter(UnusedReason.BRANCH_NOT_TAKEN)
        if parameter.reason is UnusedReason.NEVER_USED and name in used
        else parameter
        for name, parameter in report.usage.unused.items()
    }
    names = report.usage.names
    for name in report.frozen:
        # Not trainable any more, so the trace has not looked at it.
        unused[name] = UnusedParameter(UnusedReason.FROZEN)
        names = (*names, name)
    usage = dataclasses.replace(report.usage, names=names, unused=unused)
    return dataclasses.replace(report, usage=usage)


@dataclass
class _Group:
    """Parameters of some processes about which the same text holds."""

    text: str
    names: dict[str, None] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)


def _groups(
    reports: Sequence[RankReport], settings: SyncSettings
) -> list[_Group]:
    """What is wrong, equal texts of all processes as one."""
    groups: dict[str, _Group] = {}
    for report in reports:
        for text, name in _faults(report, settings):
            group = groups.setdefault(text, _Group(text))
            group.names[name] = None
            group.ranks.add(report.rank)
    return list(groups.values())


def _faults(
    report: RankReport, settings: SyncSettings
) -> list[tuple[str, str]]:
    """Text and parameter of what is wrong in one process."""
    usage = report.usage
    search = settings.find_unused_parameters and not settings.static_graph
    missing, twice = report.missing, report.twice
    if usage is not None and settings == SyncSettings():
        missing = missing or tuple(usage.unused)
    if usage is not None and not settings.static_graph:
        twice = tuple(dict.fromkeys((*twice, *usage.twice)))
        if search:
            twice = tuple(dict.fromkeys((*twice, *usage.hidden)))
    faults = []
    if not search:
        for name in missing:
            reason = _reason_text(name, usage)
            faults.append((f'got no gradient: {reason}', name))
    for name in twice:
        changed = settings.static_graph
        faults.append(
            (_CHANGED if changed else _twice_text(name, usage), name)
        )
    return faults + [(_UNFROZEN, name) for name in report.unfrozen]


def _reason_text(name: str, usage: StepUsage | None) -> str:
    unused = usage.unused.get(name) if usage is not None else None
    if unused is None:
        if usage is not None and name in usage.names:
            return 'used when the step was run again, so by chance'
        return 'reason not known'
    parts = (unused.reason.value, unused.detail, unused.location)
    return ', '.join(filter(None, parts))


def _twice_text(name: str, usage: StepUsage | None) -> str:
    if usage is None:
        return _TWICE
    if name in usage.reentrant:
        return f'{_TWICE_BY_CHECKPOINT}: {usage.reentrant[name]}'
    return _OUTSIDE if name in usage.hidden else _TWICE


def _would_diverge(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> bool:
    return any(
        predict_outcome([usage], **dataclasses.asdict(settings)).outcome
        is Outcome.DIVERGED
        for usage in usages
    )


def _group_lines(group: _Group, ranks: set[int]) -> list[str]:
    names = list(group.names)
    more = len(names) - _MAX_NAMES
    where = ''
    if group.ranks != ranks:
        listed = ', '.join(str(rank) for rank in sorted(group.ranks))
        where = f' on rank {listed}'
    count = '1 parameter' if len(names) == 1 else f'{len(names)} parameters'
    lines = [f'{count}{where} {group.text}']
    lines += [f'    {name}' for name in names[:_MAX_NAMES]]
    if more > 0:
        lines.append(f'    ... and {more} more')
    return lines


def _filled(text: str) -> str:
    """Text in lines of 79 columns that break between words only."""
    return textwrap.fill(
        text, 79, break_long_words=False, break_on_hyphens=False
    )


def _advice_lines(advice: Sequence[Advice]) -> list[str]:
    lines = []
    for number, item in enumerate(advice, 1):
        text = _filled(f'Advice {number}. {item.text}')
        lines += ['', text]
        if item.config:
            # Not indented, so that it can be pasted.
            lines += ['', item.config]
    return lines
