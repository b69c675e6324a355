import pytest
from label_facts import EXPECTED, findings_of, mask_of, only, sample_of
from msgspec.structs import replace

from mmext.label_check import ImageFacts, MaskFacts
from mmext.label_check.rules import seg_files

GOOD = [sample_of(index) for index in range(3)]
CV2 = replace(EXPECTED, loader_backend='cv2')
VALUES = {0: 50, 1: 50}


def test_exports_nothing_but_rules():
    assert seg_files.__all__ == []


@pytest.mark.parametrize('mode', ['RGB', 'RGBA', 'LA', 'CMYK'])
def test_several_channels(mode):
    mask = mask_of({0x010203: 100}, mode=mode)
    (finding,) = only('SEG010', [*GOOD, sample_of(7, mask=mask)])
    assert (finding.file, finding.value) == ('train/7.png', mode)


@pytest.mark.parametrize(('rule', 'mode'), [('SEG011', 'P'), ('SEG012', '1')])
def test_what_opencv_expands(rule, mode):
    sample = sample_of(7, mask=mask_of(VALUES, mode=mode))
    (finding,) = only(rule, [*GOOD, sample], CV2)
    assert finding.value == mode
    assert findings_of([*GOOD, sample], EXPECTED) == []


def test_lossy_format():
    sample = sample_of(7, sample={'mask': 'a.JPG'})
    (finding,) = only('SEG013', [*GOOD, sample])
    assert finding.value == 'jpg'


def test_one_row():
    image = ImageFacts(width=100, height=1, digest='x')
    mask = mask_of(VALUES, width=100, height=1)
    sample = sample_of(7, mask=mask, image=image)
    (finding,) = only('SEG014', [*GOOD, sample])
    assert finding.value == '100 x 1'


@pytest.mark.parametrize(
    ('rule', 'error'),
    [
        ('SEG015', 'missing: no such file'),
        ('SEG016', 'empty: the file has no bytes'),
        ('SEG017', 'truncated: the file ends after 12 bytes'),
        ('SEG018', 'corrupt: CRC'),
        ('SEG018', 'not an image: the file begins with 00'),
        ('SEG019', 'refused: too large'),
    ],
)
def test_files_that_cannot_be_read(rule, error):
    sample = sample_of(7, mask=MaskFacts(error=error))
    (finding,) = only(rule, [*GOOD, sample])
    assert finding.message == f'the mask cannot be read: {error}'
    assert finding.file == 'train/7.png'
