"""Rules for image files: missing, damaged, refused."""

from collections.abc import Iterator

from ..expectations import Expectations
from ..facts import SampleFacts
from ..findings import Finding, Severity
from ._unreadable import error_kind
from .registry import found, rule

__all__ = []


def _unreadable(facts: SampleFacts, kind: str) -> Iterator[Finding]:
    image = facts.image
    if image is not None and image.error and error_kind(image.error) == kind:
        yield found(
            f'the image cannot be read: {image.error}'
            if kind != 'suspect'
            else f'the image may be damaged: {image.error}',
            file=facts.sample.image,
        )


@rule(
    'IMG001',
    title='image is missing',
    severity=Severity.ERROR,
    remedy='add the file, or correct img_suffix, data_prefix or the list '
    'that names it',
    scope='sample',
    needs='image',
    subject='image',
)
def missing(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that is named and not there."""
    yield from _unreadable(facts, 'missing')


@rule(
    'IMG002',
    title='image file is empty',
    severity=Severity.ERROR,
    remedy='copy the file anew',
    scope='sample',
    needs='image',
    subject='image',
)
def empty(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file of no bytes."""
    yield from _unreadable(facts, 'empty')


@rule(
    'IMG003',
    title='image file is cut off',
    severity=Severity.ERROR,
    remedy='copy the file anew; a download or a full disk may have cut it',
    scope='sample',
    needs='image',
    subject='image',
)
def truncated(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that ends early."""
    yield from _unreadable(facts, 'truncated')


@rule(
    'IMG004',
    title='image file is damaged or no image',
    severity=Severity.ERROR,
    remedy='copy the file anew, or save it as PNG or JPEG',
    scope='sample',
    needs='image',
    subject='image',
)
def corrupt(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that cannot be decoded."""
    yield from _unreadable(facts, 'corrupt')


@rule(
    'IMG005',
    title='image is too large to be read',
    severity=Severity.ERROR,
    remedy='the file claims more pixels than are allowed; see whether it is '
    'damaged, and cut large scenes into tiles',
    scope='sample',
    needs='image',
    subject='image',
)
def refused(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that was not decoded for its size."""
    yield from _unreadable(facts, 'refused')


@rule(
    'IMG006',
    title='image file may be damaged',
    severity=Severity.WARNING,
    remedy='look at the image; copy or save it anew if parts are grey or '
    'shifted',
    scope='sample',
    needs='image',
    subject='image',
)
def suspect(facts: SampleFacts, expected: Expectations) -> Iterator[Finding]:
    """A file that one decoder complains about and another reads."""
    yield from _unreadable(facts, 'suspect')
