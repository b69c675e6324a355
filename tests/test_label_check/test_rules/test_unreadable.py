import pytest

from mmext.label_check.rules._unreadable import error_kind


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
