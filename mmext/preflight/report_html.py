"""A preflight as one page for a browser, which needs nothing but itself."""

from collections import Counter
from typing import Any

from ..utils.html_page import render_page
from .findings import PreflightFinding, Severity
from .report import BatchReport, PreflightReport, outcome_words

__all__ = ['report_html']

# With few findings, there is room for all names.
_OPEN = 8
_WORDS = {
    Severity.ERROR: ('error', 'error'),
    Severity.WARNING: ('warning', 'warning'),
    Severity.INFO: ('info', 'note'),
}


def _finding(finding: PreflightFinding) -> dict[str, Any]:
    place = f'{finding.file}:{finding.line}' if finding.file else ''
    return {
        'word': _WORDS[finding.severity][0],
        'rank': int(finding.severity),
        'rule': finding.rule,
        'message': finding.message,
        'remedy': finding.remedy,
        'key': finding.key,
        'place': place,
        'names': finding.names,
        'batches': ', '.join(finding.batches),
        'options': [
            f'{key} = {value!r}' for key, value in finding.options.items()
        ],
    }


def _batch(batch: BatchReport) -> dict[str, Any]:
    losses = (f'{name} {value:.4g}' for name, value in batch.losses.items())
    return {
        'kind': batch.kind,
        'steps': batch.steps,
        'unused': batch.unused,
        'error': batch.error,
        'text': ', '.join(losses),
    }


def _world(report: PreflightReport) -> str:
    world = report.world
    if world is None:
        return ''
    word = 'agree' if world.agrees else 'disagree'
    return (
        f'Real processes {word}: {outcome_words(world.observed)} (predicted: '
        f'{outcome_words(world.predicted)})'
    )


def _page(report: PreflightReport) -> dict[str, Any]:
    """All that the template shows."""
    counts = Counter(each.severity for each in report.findings)
    tiles = [
        {
            'word': word,
            'kinds': counts[severity],
            'label': noun if counts[severity] == 1 else f'{noun}s',
        }
        for severity, (word, noun) in _WORDS.items()
    ]
    words = [f'{each["kinds"]} {each["label"]}' for each in tiles]
    kept = [word for word, each in zip(words, tiles) if each['kinds']]
    worst, verdicts = report.worst(), report.verdicts
    return {
        'config': report.config,
        'task': report.task,
        'trainable': report.trainable,
        'verdict': ', '.join(kept) or 'nothing was found',
        'worst': 'fine' if worst is None else _WORDS[worst][0],
        'tiles': tiles,
        'not_done': report.not_done,
        'notes': report.notes,
        'findings': [_finding(each) for each in report.findings],
        'rules': sorted({each.rule for each in report.findings}),
        'open': len(report.findings) <= _OPEN,
        'verdicts': () if verdicts is None else verdicts.rows,
        'reasons': ()
        if verdicts is None
        else [
            text
            for text in (verdicts.reason, verdicts.fix, verdicts.cost)
            if text
        ],
        'world': _world(report),
        'batches': [_batch(each) for each in report.batches],
    }


def report_html(report: PreflightReport) -> bytes:
    """One page that holds a report.

    Args:
        report: Of a preflight.

    Returns:
        UTF-8. The page loads nothing; it can be read without JavaScript,
        which only sorts and filters.
    """
    return render_page(__package__, 'preflight.html.jinja', page=_page(report))
