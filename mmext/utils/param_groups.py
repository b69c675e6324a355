"""Parameter groups of an optimizer."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

# Keys that MMEngine notes in a group, and that no optimizer reads: what they
# do is in lr and weight_decay.
MULTIPLIERS = ('lr_mult', 'decay_mult')


def merge_groups(
    groups: Iterable[Mapping[str, Any]],
    defaults: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups of an optimizer, with those of equal settings as one.

    Args:
        groups: Each a dict with a list ``params`` and settings such as
            ``lr``. They are not changed.
        defaults: Settings of a group that does not have them.

    Returns:
        One group for each combination of settings, in the order of the first
        parameter that has it, without :data:`MULTIPLIERS`. Values that are
        not hashable, such as lists, are equal if they are the same object.
    """
    merged: dict[Hashable, dict[str, Any]] = {}
    for group in groups:
        settings = {
            key: value
            for key, value in {**(defaults or {}), **group}.items()
            if key != 'params' and key not in MULTIPLIERS
        }
        kind = frozenset(
            (key, value if isinstance(value, Hashable) else id(value))
            for key, value in settings.items()
        )
        merged.setdefault(kind, {**settings, 'params': []})
        merged[kind]['params'] += group['params']
    return list(merged.values())
