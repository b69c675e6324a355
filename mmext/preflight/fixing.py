"""Put the changes of findings together, and write a config that has them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from .child_config import write_child_config
from .findings import PreflightFinding, Severity

__all__ = ['Changes', 'collect_changes', 'fixed_path', 'write_fixed_config']


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
    findings: Sequence[PreflightFinding],
    least: Severity = Severity.WARNING,
) -> Changes:
    """The changes of all findings that have one.

    Args:
        findings: The worst first; of two that contradict each other, the
            first one's change is taken.
        least: Findings below that severity are left alone.

    Returns:
        The changes.

    Examples:
        >>> finding = PreflightFinding(
        ...     rule='DDP001',
        ...     severity=Severity.ERROR,
        ...     message='a parameter is unused',
        ...     remedy='remove it',
        ...     options={'find_unused_parameters': True},
        ... )
        >>> collect_changes([finding]).options
        {'find_unused_parameters': True}
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
    """Where the new config goes.

    Args:
        config: The given one.
        wanted: Of the command line; ``Path('')`` for the name of the config
            and ``_fixed``, beside it.
    """
    if wanted != Path(''):
        return wanted
    path = Path(config)
    return path.with_name(f'{path.stem}_fixed.py')


def write_fixed_config(config: str, changes: Changes, wanted: Path) -> Path:
    """Write a config that inherits the given one and changes it.

    Args:
        config: The given one.
        changes: At least one option.
        wanted: As of :func:`fixed_path`.

    Returns:
        The file.

    Raises:
        FileExistsError: If there is such a file.
    """
    return write_child_config(
        config,
        changes.options,
        fixed_path(config, wanted),
        reasons=changes.reasons,
    )
