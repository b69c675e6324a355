"""Put the changes of findings together, and write a config that has them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

from ..config import apply_options, is_same, write_child_config
from ..findings import Finding, Severity, rules_of

# Each round mends what the one before has shown; a few are usual.
_MAX_ROUNDS = 8


class Changes(NamedTuple):
    """What is to be changed in a config."""

    # Dotted keys and their new values; for each, rule and message.
    options: dict[str, Any]
    reasons: dict[str, str]
    # Findings whose change contradicts that of a worse one, in words.
    refused: tuple[str, ...]


def collect_changes(findings: Sequence[Finding]) -> Changes:
    """The changes of all findings that have one, but for those of hints.

    Hints of a rule that has a fix are taken, too: what other rules offer with
    a mild finding is not certain, these are never more than hints.

    Of two findings that contradict each other the first one's change is taken,
    so the worst come first.
    """
    options: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    refused = []
    rules = rules_of('preflight')
    for finding in findings:
        rule = rules.get(finding.rule)
        is_hint = rule and rule.fix and rule.severity is Severity.INFO
        if finding.severity < Severity.WARNING and not is_hint:
            continue
        against = [
            key
            for key, value in finding.options.items()
            if options.get(key, value) != value
            or any(
                other.startswith(f'{key}.') or key.startswith(f'{other}.')
                for other in options
            )
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


def fixed_path(config: str, wanted: Path) -> Path:
    """Where the new config goes: beside the given one if none is wanted."""
    if wanted != Path(''):
        return wanted
    path = Path(config)
    return path.with_name(f'{path.stem}_fixed.py')


class Fixed(NamedTuple):
    """A config that was fixed until nothing changed."""

    path: Path
    # How often it was written.
    rounds: int
    # Keys that its findings still offer to change, as the bound was reached
    # or something else, such as an option of the command line, undoes it.
    left: tuple[str, ...]
    # As of Changes, in the last round.
    refused: tuple[str, ...]


def fix_config(
    config: str,
    findings: Sequence[Finding],
    wanted: Path,
    look: Callable[[Path], Sequence[Finding]],
) -> Fixed | None:
    """Write a config with the changes of findings, until it offers none.

    What the config itself shows is changed first: flags of DDP are set for
    what is left then. ``config`` stays as it is; ``findings`` are its own,
    the worst first, and ``look`` gives those of another file. None if no
    finding has a change to offer.
    """
    options: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    path, rounds = fixed_path(config, wanted), 0
    rules = rules_of('preflight')
    while True:
        own = [
            finding
            for finding in findings
            if finding.rule in rules and rules[finding.rule].scope == 'config'
        ]
        changes = collect_changes(own)
        if not changes.options:
            changes = collect_changes(findings)
        tree = Config.fromfile(
            path if rounds else config, import_custom_modules=False
        ).to_dict()
        new = {
            key: value
            for key, value in changes.options.items()
            if not is_same(apply_options(tree, {key: value}), tree)
        }
        if not new or rounds == _MAX_ROUNDS:
            break
        for key, value in new.items():
            # In this order: a later one may be about a part of an earlier.
            options.pop(key, None)
            options[key] = value
            reasons[key] = changes.reasons[key]
        write_child_config(
            config, options, path, reasons=reasons, replace=bool(rounds)
        )
        rounds += 1
        findings = look(path)
    if not rounds:
        return None
    return Fixed(path, rounds, tuple(changes.options), changes.refused)
