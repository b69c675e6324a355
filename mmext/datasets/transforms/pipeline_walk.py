"""Find the transforms of a data set, wherever they are nested."""

from collections.abc import Iterator
from typing import Any

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
    for transform in _nested(getattr(dataset, 'pipeline', None)):
        yield dataset, transform
    children = getattr(dataset, 'datasets', None) or ()
    single = (getattr(dataset, name, None) for name in ('dataset', '_dataset'))
    for inner in (*children, *single):
        if inner is not None:
            yield from transforms_of(inner)
