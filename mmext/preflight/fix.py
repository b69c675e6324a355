"""Put the changes of findings together, and write a config that has them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..config import write_child_config
from ..findings import Finding, Severity

__all__ = [
    'Changes',
    'collect_changes',
    'fixed_path',
    'write_fixed_config',
]


class Changes(msgspec.Struct, frozen=True):
    """What is to be changed in a config.

    Attributes:
        options: Dotted keys and their new values.
        reasons: For each of these keys, rule and message.
        refused: Findings whose change contradicts that of a worse one, in
            words.
    """

    options: dict[str, Any]
    reasons: dict[str, str]
    refused: tuple[str, ...] = ()


def collect_changes(
    findings: Sequence[Finding],
    least: Severity = Severity.WARNING,
) -> Changes:
    """The changes of all findings of a severity that have one.

    Of two findings that contradict each other the first one's change is taken,
    so the worst come first.
    """
    options: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    refused = []
    for finding in findings:
        if finding.severity < least:
            continue
        against = [
            key
            for key, value in finding.options.items()
            if not _fits(key, value, options)
        ]
        if against:
            refused.append(
                f'{finding.rule}: its change of {", ".join(against)} is '
                'against that of a worse finding'
            )
            continue
        for key, value in finding.options.items():
            options[key] = value
            reason = f'{finding.rule}: {finding.message}'
            reasons.setdefault(key, reason)
    return Changes(options, reasons, tuple(refused))


def _fits(key: str, value: Any, options: dict[str, Any]) -> bool:
    """Whether a change can stand beside those there are."""
    if key in options:
        return options[key] == value
    return not any(
        other.startswith(f'{key}.') or key.startswith(f'{other}.')
        for other in options
    )


def fixed_path(config: str, wanted: Path) -> Path:
    """Where the new config goes: beside the given one if none is wanted."""
    if wanted != Path(''):
        return wanted
    path = Path(config)
    return path.with_name(f'{path.stem}_fixed.py')


def write_fixed_config(config: str, changes: Changes, wanted: Path) -> Path:
    """Write a config that inherits the given one and changes it."""
    return write_child_config(
        config,
        changes.options,
        fixed_path(config, wanted),
        reasons=changes.reasons,
    )
