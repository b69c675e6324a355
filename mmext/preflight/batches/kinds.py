"""Kinds of batches that a model must survive, and what tasks they suit."""

from collections.abc import Sequence

__all__ = ['DETECTION_TASKS', 'KINDS', 'TASKS', 'check_kinds', 'kinds_of']

# 'real' is read from the data of the config, the others are made up.
KINDS = ('normal', 'empty', 'one-class', 'crowded', 'real')
DETECTION_TASKS = ('detection', 'instance', 'panoptic', 'tracking')
TASKS = (
    *DETECTION_TASKS,
    'semantic',
    'depth',
    'classification',
    'multi-label',
    'pretraining',
)

_FEW = {
    'depth': ('normal', 'real'),
    'classification': ('normal', 'one-class', 'real'),
    'multi-label': ('normal', 'empty', 'one-class', 'real'),
    'pretraining': ('normal', 'real'),
}


def kinds_of(task: str) -> tuple[str, ...]:
    """Kinds of batches that exist for a task.

    A picture of a classification has always a class, and a pre-training
    looks at no labels, so that some kinds mean nothing to them.

    Args:
        task: One of :data:`TASKS`.

    Returns:
        Of :data:`KINDS`, in their order.

    Raises:
        ValueError: If the task is not one of them.

    Examples:
        >>> kinds_of('classification')
        ('normal', 'one-class', 'real')
    """
    if task not in TASKS:
        raise ValueError(f'task must be one of {TASKS}, got {task!r}')
    return _FEW.get(task, KINDS)


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise if a kind of batch is not known.

    Args:
        kinds: To be checked.

    Raises:
        ValueError: If one is not in :data:`KINDS`, or there is none.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if isinstance(kinds, str) or not kinds:
        unknown = kinds
    if unknown or not kinds:
        raise ValueError(f'kinds must be some of {KINDS}, got {unknown!r}')
