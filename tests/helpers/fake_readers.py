"""Readers that do nothing but what a test of the engine needs.

Importing this adds them to the table of readers. Processes that get a
:class:`FakeItem` import it when they unpickle the item, so they have them,
too, if this folder is on their path.
"""

import sys
from pathlib import Path

from mmext.checks.labels.facts import ErrorKind, MaskFacts, ReadError
from mmext.checks.labels.store import READERS, WorkItem


def facts_of(content: bytes) -> MaskFacts:
    """Number of bytes as width, so that a test knows what must come out."""
    error = None
    if content.startswith(b'bad'):
        error = ReadError(ErrorKind.CORRUPT, 'corrupt: bad')
    return MaskFacts(width=len(content), mode='L', error=error)


sys.modules['mmext.checks.labels.readers.fake'] = sys.modules[__name__]
READERS['fast'] = MaskFacts, 'fake', 'facts_of'


class FakeItem(WorkItem, frozen=True, kw_only=True, gc=False):
    """A file that one of these readers reads, in whatever process."""


def item(path: Path | str, kind: str) -> FakeItem:
    """Item for ``'fast'``."""
    return FakeItem(path=str(path), kind=kind)
