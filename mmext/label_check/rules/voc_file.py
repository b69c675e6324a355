"""Rules for annotation files in the XML format of Pascal VOC.

Boxes are looked at by the rules of det_boxes.py.
"""

from collections.abc import Iterator

from ..expectations import Expectations
from ..facts import SampleFacts
from ..findings import Finding, Severity
from ._unreadable import error_kind
from .registry import found, rule

__all__ = []


@rule(
    'VOC001',
    title='annotation file is missing',
    severity=Severity.ERROR,
    remedy='add the file, or correct ann_subdir, or the list that names it; '
    'building the data set fails at it',
    scope='sample',
    needs='annotation',
    subject='annotation file',
)
def missing(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that is named and not there."""
    file = facts.annotation
    if file is not None and error_kind(file.error) == 'missing':
        yield found(
            'the annotation file is not there', file=facts.sample.annotation
        )


@rule(
    'VOC002',
    title='annotation file that cannot be read, or not all of it',
    severity=Severity.ERROR,
    remedy='correct the file at the place that is named; loaders fail at it',
    scope='sample',
    needs='annotation',
    subject='annotation file',
)
def unreadable(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """What is no XML, or lacks what every object must have."""
    file = facts.annotation
    if file is None or not file.error or error_kind(file.error) == 'missing':
        return
    for error in file.error.split('; '):
        place, _, rest = error.partition(' ')
        named = place.startswith(('object[', 'size.')) and rest
        yield found(
            rest if named else error,
            file=facts.sample.annotation,
            place=place if named else '',
        )


@rule(
    'VOC003',
    title='annotation file names another image',
    severity=Severity.WARNING,
    remedy='see whether the two were exchanged: loaders go by the name of the '
    'annotation file and do not read <filename>',
    scope='sample',
    needs='annotation',
    subject='annotation file',
)
def other_image(
    facts: SampleFacts, expected: Expectations
) -> Iterator[Finding]:
    """The stem of ``<filename>`` is not that of the image."""
    file, image = facts.annotation, facts.sample.image
    if file is None or not file.image or not image:
        return
    if _stem(file.image) != _stem(image):
        yield found(
            'filename of the annotation is not the image it is read for',
            file=facts.sample.annotation,
            place='filename',
            value=file.image,
        )


def _stem(path: str) -> str:
    name = path.replace('\\', '/').rpartition('/')[2]
    return name.rpartition('.')[0] or name
