"""Find the data sets inside of wrappers."""

from collections.abc import Iterator
from typing import Any

__all__ = ['inner_datasets', 'walk_datasets']


def inner_datasets(dataset: Any) -> list[Any]:
    """The data sets that a wrapper holds.

    Args:
        dataset: Of MMEngine's kind, or a wrapper around some.

    Returns:
        Those directly inside; empty if it is no wrapper.
    """
    children = getattr(dataset, 'datasets', None) or ()
    single = (getattr(dataset, name, None) for name in ('dataset', '_dataset'))
    return [inner for inner in (*children, *single) if inner is not None]


def walk_datasets(dataset: Any) -> Iterator[Any]:
    """A data set and all that it wraps, the outer ones first.

    Args:
        dataset: Of MMEngine's kind, or a wrapper around some.
    """
    yield dataset
    for inner in inner_datasets(dataset):
        yield from walk_datasets(inner)
