import pytest

from mmext.label_check import ImageFacts, MaskFacts
from mmext.label_check.rules._unreadable import error_kind, has_size


@pytest.mark.parametrize(
    ('error', 'kind'),
    [
        ('missing: x', 'missing'),
        ('empty: x', 'empty'),
        ('truncated: x', 'truncated'),
        ('refused: x', 'refused'),
        ('suspect: x', 'suspect'),
        ('corrupt: x', 'corrupt'),
        ('9 x 9 pixels are refused, more than 4', 'refused'),
        ('what else', 'corrupt'),
    ],
)
def test_error_kind(error, kind):
    assert error_kind(error) == kind


@pytest.mark.parametrize(
    ('facts', 'known'),
    [
        (None, False),
        (ImageFacts(error='missing: x'), False),
        (ImageFacts(width=4, height=3), True),
        (MaskFacts(width=4, height=3), True),
        (ImageFacts(width=4, height=3, error='suspect: x'), True),
        (ImageFacts(width=4, height=3, error='truncated: x'), False),
        (MaskFacts(width=4, height=3, error='9 x 9 are refused, x'), False),
    ],
)
def test_has_size(facts, known):
    assert has_size(facts) == known
