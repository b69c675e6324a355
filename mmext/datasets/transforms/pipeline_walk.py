"""Find the transforms of a data set, wherever they are nested."""

from collections.abc import Iterator
from typing import Any

from ..dataset_walk import walk_datasets

__all__ = ['transforms_of']


def _nested(transform: Any) -> Iterator[Any]:
    """A transform and those inside it, such as of RandomChoice."""
    if isinstance(transform, (list, tuple)):
        for each in transform:
            yield from _nested(each)
        return
    if transform is None:
        return
    yield transform
    yield from _nested(getattr(transform, 'transforms', None))


def transforms_of(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """All transforms that a data set applies.

    Args:
        dataset: Of MMEngine's kind, or a wrapper around some.

    Yields:
        Pairs of the data set that has the pipeline, and a transform.
    """
    for inner in walk_datasets(dataset):
        for transform in _nested(getattr(inner, 'pipeline', None)):
            yield inner, transform
