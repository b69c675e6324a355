"""A progress bar with the time left, on standard error."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ['track']

T = TypeVar('T')


def track(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """Pass items on and show how many are done and how long it will take.

    Args:
        items: Any items.
        total: How many there will be at most.
        text: What is being done.

    Yields:
        The items.

    Examples:
        >>> list(track('ab', 2, 'letters'))
        ['a', 'b']
    """
    bar = Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn('left'),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(text, total=total)
        for item in items:
            yield item
            bar.advance(task)
        # Items that were left out on the way are done, too.
        bar.update(task, completed=total)
