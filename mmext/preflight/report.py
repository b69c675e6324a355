"""The result of a preflight, and its JSON form."""

from typing import Any

import msgspec

from .findings import PreflightFinding, Severity
from .proof.facts import Proof
from .sync_cures import SyncSettings
from .sync_outcome import Outcome

__all__ = [
    'BatchReport',
    'PreflightReport',
    'make_batch_reports',
    'outcome_words',
    'report_json',
    'sort_findings',
]

SCHEMA_VERSION = 1


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one kind of batch.

    Attributes:
        kind: ``'normal'``, ``'empty'``, ...
        steps: That ran to their end.
        losses: Names and values of the first step, as far as they are
            summed.
        unused: Trainable parameters without a gradient in the first step.
        error: What ended it; empty if nothing did.
    """

    kind: str
    steps: int
    losses: dict[str, float]
    unused: int
    error: str = ''


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a preflight has found.

    Attributes:
        schema_version: Of this form; it grows when a field changes meaning.
        config: File, as it was given.
        task: ``'detection'``, ``'semantic'``, ...; empty if no model could
            be built.
        trainable: Parameters that require a gradient, as tensors.
        settings: What the config sets the model wrapper to.
        batches: What was run.
        verdicts: Of each combination of settings; None without a step.
        world: What processes did; None if none were started.
        notes: What was changed to build the model.
        not_done: What could not be looked at, and why.
        findings: The worst first.
    """

    schema_version: int = SCHEMA_VERSION
    config: str
    task: str = ''
    trainable: int = 0
    settings: SyncSettings = SyncSettings()
    batches: tuple[BatchReport, ...] = ()
    verdicts: Any = None
    world: Any = None
    notes: tuple[str, ...] = ()
    not_done: tuple[str, ...] = ()
    findings: tuple[PreflightFinding, ...] = ()

    def worst(self) -> Severity | None:
        """The severity of the worst finding; None without any."""
        return max((each.severity for each in self.findings), default=None)


def make_batch_reports(proof: Proof) -> tuple[BatchReport, ...]:
    """Sum up what was run.

    Args:
        proof: Of a model.

    Returns:
        One for each kind of batch, in their order.
    """
    errors = {
        each.kind: f'{each.error} in step {each.step + 1} ({each.phase}): '
        f'{each.message}'
        for each in proof.crashes
    }
    found = []
    for kind, steps in proof.steps.items():
        losses = steps[0].losses if steps else ()
        found.append(
            BatchReport(
                kind=kind,
                steps=len(steps),
                losses={
                    each.name: each.value for each in losses if each.summed
                },
                unused=len(steps[0].usage.unused) if steps else 0,
                error=errors.get(kind, ''),
            )
        )
    return tuple(found)


def outcome_words(name: str) -> str:
    """What an outcome of real processes means.

    Args:
        name: Of an :class:`~mmext.preflight.sync_outcome.Outcome`, in lower
            case; others are given back.

    Examples:
        >>> outcome_words('unfinished')
        'a parameter has no gradient: error at the next forward'
    """
    found = Outcome.__members__.get(name.upper())
    return found.value if found is not None else name


def sort_findings(
    findings: list[PreflightFinding],
) -> tuple[PreflightFinding, ...]:
    """The worst first, then by rule, key and text."""
    return tuple(
        sorted(
            findings,
            key=lambda each: (
                -each.severity,
                each.rule,
                each.key,
                each.message,
            ),
        )
    )


def report_json(report: PreflightReport) -> bytes:
    """JSON of a report: two blanks of indent, keys in a fixed order.

    Args:
        report: Of a preflight. Numbers that JSON does not have become null.

    Returns:
        UTF-8, with a newline at the end.
    """
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b'\n'
