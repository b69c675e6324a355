"""Sizes of images that EXIF turns."""

import pytest
from helpers.label_facts import only, sample_of

from mmext.checks.labels.facts import (
    ErrorKind,
    ImageFacts,
    MaskFacts,
    ReadError,
    has_size,
    loaded_size,
)

GOOD = [sample_of(index) for index in range(3)]


@pytest.mark.parametrize(
    ('rule', 'kind'),
    [
        ('IMG001', ErrorKind.MISSING),
        ('IMG002', ErrorKind.EMPTY),
        ('IMG003', ErrorKind.TRUNCATED),
        ('IMG004', ErrorKind.CORRUPT),
        ('IMG004', ErrorKind.UNAVAILABLE),
        ('IMG005', ErrorKind.REFUSED),
        ('IMG006', ErrorKind.SUSPECT),
    ],
)
def test_files_that_cannot_be_read(rule, kind):
    sample = sample_of(7, image=ImageFacts(error=ReadError(kind, 'no data')))
    (finding,) = only(rule, [*GOOD, sample])
    assert 'no data' in finding.message
    assert finding.file == 'train/7.jpg'


@pytest.mark.parametrize(
    ('facts', 'known'),
    [
        (None, False),
        (ImageFacts(error=ReadError(ErrorKind.MISSING, 'x')), False),
        (ImageFacts(width=4, height=3), True),
        (MaskFacts(width=4, height=3), True),
        (
            ImageFacts(
                width=4, height=3, error=ReadError(ErrorKind.SUSPECT, 'x')
            ),
            True,
        ),
        (
            ImageFacts(
                width=4, height=3, error=ReadError(ErrorKind.TRUNCATED, 'x')
            ),
            False,
        ),
        (
            MaskFacts(
                width=4, height=3, error=ReadError(ErrorKind.REFUSED, 'x')
            ),
            False,
        ),
    ],
)
def test_has_size(facts, known):
    assert has_size(facts) == known


@pytest.mark.parametrize('orientation', range(1, 9))
def test_quarter_turns(orientation):
    image = ImageFacts(width=40, height=30, orientation=orientation)
    expected = (30, 40) if orientation >= 5 else (40, 30)
    assert loaded_size(image) == expected
