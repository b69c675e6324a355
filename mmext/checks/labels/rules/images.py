"""Rules for image files: missing, damaged, refused."""

from collections.abc import Iterator

from ...findings import Finding, Severity, found
from ..expectations import Expectations
from ..facts import ErrorKind, SampleFacts
from .registry import IMG


def _unreadable(facts: SampleFacts, *kinds: ErrorKind) -> Iterator[Finding]:
    error = facts.image.error if facts.image is not None else None
    if error is not None and error.kind in kinds:
        yield found(
            f'the image cannot be read: {error}'
            if error.kind is not ErrorKind.SUSPECT
            else f'the image may be damaged: {error}',
            file=facts.sample.image,
        )


@IMG.rule(
    'IMG001',
    title='image is missing where loaders look',
    severity=Severity.ERROR,
    remedy='add the file, or correct img_suffix, data_prefix or the list '
    'that names it',
    blocks_training=True,
)
def missing(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that is named and not there; MMDetection adds .jpg to names."""
    yield from _unreadable(facts, ErrorKind.MISSING)
    sample = facts.sample
    if sample.annotation_kind == 'voc' and not sample.image.endswith('.jpg'):
        yield found(
            'the image must be .jpg: XMLDataset finds no others, and fails',
            file=sample.image,
            remedy='save the image as .jpg; a PNG file may just be renamed',
        )


@IMG.rule(
    'IMG002',
    title='image file is empty',
    severity=Severity.ERROR,
    remedy='copy the file anew',
    blocks_training=True,
)
def empty(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file of no bytes."""
    yield from _unreadable(facts, ErrorKind.EMPTY)


@IMG.rule(
    'IMG003',
    title='image file is cut off',
    severity=Severity.ERROR,
    remedy='copy the file anew; a download or a full disk may have cut it',
    blocks_training=True,
)
def truncated(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that ends early."""
    yield from _unreadable(facts, ErrorKind.TRUNCATED)


@IMG.rule(
    'IMG004',
    title='image file is damaged or no image',
    severity=Severity.ERROR,
    remedy='copy the file anew, or save it as PNG or JPEG',
    blocks_training=True,
)
def corrupt(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that cannot be decoded."""
    yield from _unreadable(facts, ErrorKind.CORRUPT, ErrorKind.UNAVAILABLE)


@IMG.rule(
    'IMG005',
    title='image is too large to be read',
    severity=Severity.ERROR,
    remedy='the file claims more pixels than are allowed; see whether it is '
    'damaged, and cut large scenes into tiles',
    blocks_training=True,
)
def refused(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that was not decoded for its size."""
    yield from _unreadable(facts, ErrorKind.REFUSED)


@IMG.rule(
    'IMG006',
    title='image file may be damaged',
    severity=Severity.WARNING,
    remedy='look at the image; copy or save it anew if parts are grey or '
    'shifted',
)
def suspect(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that one decoder complains about and another reads."""
    yield from _unreadable(facts, ErrorKind.SUSPECT)
