"""What real processes say against the proof."""

from typing import Any

from .findings import PreflightFinding, Severity

__all__ = ['world_findings']


def world_findings(world: Any) -> list[PreflightFinding]:
    """A finding where real processes do something else than was predicted.

    Args:
        world: A :class:`~mmext.preflight.proof.world.WorldResult`, or None
            if no process was started.

    Returns:
        At most one.
    """
    if world is None or world.agrees:
        return []
    if world.agrees is None:
        message = 'the model itself fails in several processes'
    else:
        message = (
            'real processes do something else than one process lets expect: '
            f'{world.observed} (predicted: {world.predicted})'
        )
    return [
        PreflightFinding(
            rule='WORLD001',
            severity=Severity.ERROR,
            message=f'{message}{"; " if world.detail else ""}{world.detail}',
            remedy='look for what depends on the rank or on the number of '
            'processes: collectives in the forward, SyncBN, a branch that '
            'other data take',
        )
    ]
