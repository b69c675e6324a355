"""Where the samples of one split come from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..expectations import Expectations
from ..facts import Sample

__all__ = ['SplitSource']


@dataclass(frozen=True)
class SplitSource:
    """One split of a data set, as training would read it.

    Attributes:
        expected: What the training expects of its labels.
        samples: Gives the samples, anew at each call; no file of theirs is
            opened.
        orphans: Gives label files that belong to no sample.
        backend_args: Of MMEngine's file backend; None for files by path.
    """

    expected: Expectations
    samples: Callable[[], Iterator[Sample]]
    orphans: Callable[[], Iterator[str]] = lambda: iter(())
    backend_args: dict | None = None
