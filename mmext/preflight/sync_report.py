"""Say in words why the gradients of a step cannot be averaged."""

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .step_usage import ParameterUse, StepUsage, UnusedReason
from .sync_cures import Cure, SyncSettings, find_cures
from .sync_outcome import Outcome, predict_outcome

__all__ = ['RankReport', 'format_sync_report', 'refine_reasons']

_MAX_NAMES = 12
_TWICE = 'marked ready twice by a reentrant checkpoint'
_TWICE_OTHER = 'marked ready twice'
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
        note: Why ``usage`` is None.
    """

    rank: int
    usage: StepUsage | None = None
    missing: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    unfrozen: tuple[str, ...] = ()
    used_before: frozenset[str] = frozenset()
    frozen: tuple[str, ...] = ()
    error: str = ''
    note: str = ''


@dataclass
class _Section:
    """Parameters with one thing to say about them."""

    text: str
    names: dict[str, None] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)


def refine_reasons(reports: Sequence[RankReport]) -> list[RankReport]:
    """Use what other processes and earlier steps tell about the reasons.

    Args:
        reports: One of each process.

    Returns:
        The same, where "never used" became "the branch was not taken" for
        what another process or an earlier step has used, and "frozen" for
        what needs no gradient any more.
    """
    fired = set()
    for report in reports:
        if report.usage is not None:
            fired |= {f.name for f in report.usage.firings}
        fired |= report.used_before
    return [_refine(report, fired) for report in reports]


def _refine(report: RankReport, fired: set[str]) -> RankReport:
    if report.usage is None:
        return report
    unused = {
        name: ParameterUse(UnusedReason.BRANCH_NOT_TAKEN)
        if use.reason is UnusedReason.NEVER_USED and name in fired
        else use
        for name, use in report.usage.unused.items()
    }
    names = report.usage.names
    for name in report.frozen:
        # Not trainable any more, so the trace has not looked at it.
        unused[name] = ParameterUse(UnusedReason.FROZEN)
        names = (*names, name)
    usage = dataclasses.replace(report.usage, names=names, unused=unused)
    return dataclasses.replace(report, usage=usage)


def format_sync_report(
    reports: Sequence[RankReport], settings: SyncSettings
) -> str:
    """The message for the user.

    Args:
        reports: One of each process.
        settings: What the training ran with.

    Returns:
        Several lines: which parameters, why, where, and what to do.
    """
    reports = refine_reasons(reports)
    sections = _sections(reports, settings)
    ranks = sorted(report.rank for report in reports)
    lines = [
        'the gradients of this step cannot be averaged over the processes '
        f'(find_unused_parameters={settings.find_unused_parameters}, '
        f'static_graph={settings.static_graph}).'
    ]
    for section in sections:
        lines += ['', *_section_lines(section, ranks)]
    notes = sorted({r.note for r in reports if r.note})
    lines += [f'\n{note}' for note in notes]
    errors = sorted({r.error for r in reports if r.error})
    if not sections and errors:
        lines += ['', 'PyTorch says: ' + errors[0]]
    usages = [r.usage for r in reports if r.usage is not None]
    if usages:
        if _would_diverge(usages, settings):
            lines += ['', _SILENT]
        lines += _cure_lines(find_cures(usages, settings))
    return '\n'.join(lines)


def _sections(
    reports: Sequence[RankReport], settings: SyncSettings
) -> list[_Section]:
    """What there is to say, each thing once for all processes."""
    sections: dict[str, _Section] = {}

    def say(text: str, names: Iterable[str], rank: int) -> None:
        section = sections.setdefault(text, _Section(text))
        section.names.update(dict.fromkeys(names))
        section.ranks.add(rank)

    for report in reports:
        for text, names in _findings(report, settings).items():
            say(text, names, report.rank)
    return list(sections.values())


def _findings(
    report: RankReport, settings: SyncSettings
) -> Mapping[str, list[str]]:
    """Text -> parameters, for one process."""
    found: dict[str, list[str]] = {}

    def say(text: str, name: str) -> None:
        found.setdefault(text, []).append(name)

    usage = report.usage
    allowed = settings.find_unused_parameters or settings.static_graph
    missing = report.missing
    if usage is not None and not missing and not allowed:
        missing = tuple(usage.unused)
    if not allowed or settings.static_graph:
        for name in missing:
            say('got no gradient: ' + _reason_text(name, usage), name)
    twice = report.twice
    if usage is not None:
        if not settings.static_graph:
            twice = tuple(dict.fromkeys((*twice, *usage.twice)))
        if settings.find_unused_parameters and not settings.static_graph:
            twice = (*twice, *(n for n in usage.hidden if n not in twice))
    for name in twice:
        text = _twice_text(name, usage)
        say(_CHANGED if settings.static_graph else text, name)
    for name in report.unfrozen:
        say(_UNFROZEN, name)
    return found


def _reason_text(name: str, usage: StepUsage | None) -> str:
    use = usage.unused.get(name) if usage is not None else None
    if use is None:
        if usage is not None and name in usage.names:
            return 'used when the step was run again, so by chance'
        return 'reason not known'
    return ', '.join(filter(None, (use.reason.value, use.detail, use.place)))


def _twice_text(name: str, usage: StepUsage | None) -> str:
    if usage is None:
        return _TWICE_OTHER
    if name in usage.reentrant:
        return f'{_TWICE}: {usage.reentrant[name]}'
    return _OUTSIDE if name in usage.hidden else _TWICE_OTHER


def _would_diverge(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> bool:
    return any(
        predict_outcome(
            [usage],
            find_unused_parameters=settings.find_unused_parameters,
            static_graph=settings.static_graph,
        ).outcome
        is Outcome.DIVERGED
        for usage in usages
    )


def _section_lines(section: _Section, ranks: Sequence[int]) -> list[str]:
    names = list(section.names)
    shown = names[:_MAX_NAMES]
    more = len(names) - len(shown)
    where = ''
    if section.ranks != set(ranks):
        listed = ', '.join(str(rank) for rank in sorted(section.ranks))
        where = f' on rank {listed}'
    count = '1 parameter' if len(names) == 1 else f'{len(names)} parameters'
    lines = [f'{count}{where} {section.text}']
    lines += [f'    {name}' for name in shown]
    if more:
        lines.append(f'    ... and {more} more')
    return lines


def _cure_lines(cures: Sequence[Cure]) -> list[str]:
    lines = []
    for number, cure in enumerate(cures, 1):
        text = textwrap.fill(f'Cure {number}. {cure.text}', 79)
        lines += ['', text]
        if cure.config:
            # Not indented, so that it can be pasted.
            lines += ['', cure.config]
    return lines
