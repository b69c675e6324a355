"""The errors of the wrapper, and how they are worded.

The text of a :class:`GradientSyncError` is made by :func:`format_sync_report`;
why a parameter has no gradient, and what to do, is worded in
:mod:`mmext.checks.ddp.explain`.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...checks.ddp import (
    OUTSIDE_FORWARD,
    Explanation,
    Outcome,
    Step,
    StepUsage,
    SyncSettings,
    UnusedParameter,
    UnusedReason,
    group_lines,
    predict_outcome,
)
from ...utils.torch_compat import CollectiveError
from .watch import GroupError, PeerError, current_watch

_HEAD = (
    'the gradients of this step cannot be averaged over the processes '
    '(find_unused_parameters={}, static_graph={}).'
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
_EVERY_STEP = (
    '; DDP needs a gradient of an embedding with sparse=True in every step, '
    'with find_unused_parameters and static_graph, too'
)
_DENSE = 'got a dense gradient, and DDP expects a sparse one (sparse=True)'
_SPARSE = (
    'got a sparse gradient, which DDP expects of nn.Embedding and '
    'nn.EmbeddingBag with sparse=True only'
)
_UNFROZEN = (
    'trainable now, but not when the model was wrapped: its gradient would '
    'never be averaged'
)


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
    return isinstance(error, CollectiveError) or (
        isinstance(error, RuntimeError)
        and not isinstance(error, PeerError)
        and any(text in str(error) for text in _PEER_TEXTS)
    )


def peer_gone(error: Exception) -> PeerError:
    """The error for a collective that another process did not come to."""
    watch = current_watch()
    missing = watch.report() or 'see the output of the others'
    if watch.lost_ranks():
        return PeerError(f'another process has failed or ended: {missing}')
    text = str(error).strip()
    what = 'has closed its connection'
    if re.search('timed? ?out', text, re.IGNORECASE):
        what = 'does not answer within env_cfg.dist_cfg.timeout'
    return PeerError(
        f'another process {what}: {missing}. This one got: '
        f'{text.splitlines()[0] if text else type(error).__name__}'
    )


@contextmanager
def watched_run() -> Iterator[None]:
    """A part of a run that needs all ranks: none may leave before it is over.

    Errors of collectives say which rank is missing.
    """
    watch = current_watch()
    if watch.size == 1:
        yield
        return
    watch.in_run, watch.own.finished = True, False
    try:
        try:
            yield
        except RuntimeError as error:
            if is_peer_error(error):
                raise peer_gone(error) from error
            raise
    except BaseException as error:
        watch.note_failure(error)
        raise
    watch.finish()


def peers_elsewhere(
    locations: Sequence[tuple[int, int | None, bool]],
) -> PeerError:
    """The error where processes are in other steps.

    ``locations`` has, for each process, its rank, the number of its step, None
    if it has none, and whether it is at the end of its data.
    """
    shown = ', '.join(
        f'rank {rank} '
        + (f'at its end after {step} steps' if at_end else f'in step {step}')
        for rank, step, at_end in locations
        if step is not None
    )
    if any(at_end for _, _, at_end in locations):
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
    """What one process knows about a step that cannot be averaged."""

    rank: int
    # The step traced again, None if it could not be, for `trace_error`.
    usage: StepUsage | None = None
    # Parameters without a gradient, and with more than one.
    missing: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    # Those that became trainable, or were frozen, after wrapping.
    unfrozen: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    # Those that had a gradient in an earlier step.
    used_before: frozenset[str] = frozenset()
    # Text of the reducer's error, if there was one.
    error: str = ''
    trace_error: str = ''


class GradientSyncError(GroupError):
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
    ranks = {report.rank for report in reports}
    lines = [
        _HEAD.format(settings.find_unused_parameters, settings.static_graph)
    ]
    # Equal texts of all processes are said once.
    groups: dict[str, tuple[dict[str, None], set[int]]] = {}
    for report in reports:
        for text, name in _faults(report, settings):
            names, of_ranks = groups.setdefault(text, ({}, set()))
            names[name] = None
            of_ranks.add(report.rank)
    for text, (names, of_ranks) in groups.items():
        where = ''
        if of_ranks != ranks:
            where = f' on rank {", ".join(map(str, sorted(of_ranks)))}'
        lines += ['', *group_lines(text, list(names), where)]
    trace_errors = sorted({r.trace_error for r in reports if r.trace_error})
    lines += [f'\n{trace_error}' for trace_error in trace_errors]
    errors = sorted({r.error for r in reports if r.error})
    if not groups and errors:
        lines += ['', 'PyTorch says: ' + errors[0]]
    usages = [r.usage for r in reports if r.usage is not None]
    if usages:
        if any(
            predict_outcome([usage], **dataclasses.asdict(settings)).outcome
            is Outcome.DIVERGED
            for usage in usages
        ):
            lines += ['', _SILENT]
        # Each process numbers parameters for itself.
        steps = [Step(dataclasses.replace(u, serials={})) for u in usages]
        lines += Explanation(steps, settings).advice_lines()
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
    refined = []
    for report in reports:
        usage = report.usage
        if usage is not None:
            branch = UnusedParameter(UnusedReason.BRANCH_NOT_TAKEN)
            frozen = UnusedParameter(UnusedReason.FROZEN)
            unused = {
                name: branch
                if why.reason is UnusedReason.NEVER_USED and name in used
                else why
                for name, why in usage.unused.items()
            }
            # Not trainable any more, so the trace has not looked at them.
            usage = dataclasses.replace(
                usage,
                names=(*usage.names, *report.frozen),
                unused=unused | dict.fromkeys(report.frozen, frozen),
            )
        refined.append(dataclasses.replace(report, usage=usage))
    return refined


def _faults(
    report: RankReport, settings: SyncSettings
) -> list[tuple[str, str]]:
    """Text and parameter of what is wrong in one process."""
    usage, static = report.usage, settings.static_graph
    search = settings.find_unused_parameters and not static
    missing, twice = report.missing, report.twice
    if usage is not None and not static:
        if not search:
            missing = missing or tuple(usage.unused)
        twice += usage.twice + (usage.hidden if search else ())
    faults = []
    sparse = () if usage is None else usage.sparse
    for name in missing:
        why = 'reason not known'
        if usage is not None and name in usage.unused:
            why = usage.unused[name].in_words()
        elif usage is not None and name in usage.names:
            why = 'used when the step was run again, so by chance'
        if search or name in sparse:
            why += _EVERY_STEP
        faults.append((f'got no gradient: {why}', name))
    for name in dict.fromkeys(twice):
        text = _CHANGED if static else 'marked ready twice'
        if usage is not None and not static:
            if name in usage.reentrant:
                text += f' by a reentrant checkpoint: {usage.reentrant[name]}'
            elif name in usage.hidden:
                text = OUTSIDE_FORWARD
        faults.append((text, name))
    for gradient in () if usage is None else usage.ready:
        if not gradient.empty and gradient.sparse != (gradient.name in sparse):
            text = _SPARSE if gradient.sparse else _DENSE
            faults.append((text, gradient.name))
    return faults + [(_UNFROZEN, name) for name in report.unfrozen]
