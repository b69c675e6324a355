import pytest
from label_facts import only, sample_of

from mmext.label_check import ImageFacts
from mmext.label_check.rules import images

GOOD = [sample_of(index) for index in range(3)]


def test_exports_nothing_but_rules():
    assert images.__all__ == []


@pytest.mark.parametrize(
    ('rule', 'error'),
    [
        ('IMG001', 'missing: no such file'),
        ('IMG002', 'empty: the file has no bytes'),
        ('IMG003', 'truncated: the file ends after 12 bytes'),
        ('IMG004', 'corrupt: CRC'),
        ('IMG005', 'refused: too large'),
        ('IMG006', 'suspect: libjpeg warns'),
    ],
)
def test_files_that_cannot_be_read(rule, error):
    sample = sample_of(7, image=ImageFacts(error=error))
    (finding,) = only(rule, [*GOOD, sample])
    assert error in finding.message
    assert finding.file == 'train/7.jpg'
