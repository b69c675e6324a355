"""Where the samples of one split come from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..expectations import Expectations
from ..facts import Orphan, Sample
from ..readers.coco import CocoFacts


@dataclass(frozen=True)
class SplitSource:
    """One split of a data set, as training would read it.

    Attributes:
        expected: What the training expects of its labels.
        samples: Gives the samples, anew at each call; no file of theirs is
            opened.
        orphans: Gives the files that belong to no sample.
        coco: Gives the annotation file that all samples are from; None if
            there is none in COCO's format. Samples then list only boxes that
            may be wrong.
        learn_classes: The classes are the names that the annotation files
            have; ``expected`` does not have them yet.
        list_file: File that names one sample a line; empty without one.
        verify: Inflate PNG data of label maps a second time, to compare
            their checksum.
        backend_args: Of MMEngine's file backend; None for files by path.
    """

    expected: Expectations
    samples: Callable[[], Iterator[Sample]]
    orphans: Callable[[], Iterator[Orphan]] = lambda: iter(())
    coco: Callable[[], CocoFacts] | None = None
    learn_classes: bool = False
    list_file: str = ''
    verify: bool = False
    backend_args: dict | None = None
