import pytest
from label_facts import EXPECTED, findings_of, mask_of, only, sample_of
from msgspec.structs import replace

from mmext.label_check import ImageFacts
from mmext.label_check.rules import pairs

GOOD = [sample_of(index) for index in range(3)]
TALL = {'width': 10, 'height': 20}
VALUES = {0: 100, 1: 100}


def image(width: int, height: int, orientation: int = 1) -> ImageFacts:
    return ImageFacts(
        width=width, height=height, orientation=orientation, digest='z'
    )


def test_exports_nothing_but_rules():
    assert pairs.__all__ == []


def test_other_size():
    sample = sample_of(7, image=image(11, 20), mask=mask_of(VALUES))
    (finding,) = only('PAIR001', [*GOOD, sample])
    assert 'got 11 x 20 of train/7.jpg and 10 x 20' in finding.message
    assert finding.file == 'train/7.png'


def test_files_that_cannot_be_read_have_no_size():
    """They have an error of their own, of the reader."""
    for error in ('truncated: x', 'corrupt: x', '9 x 9 are refused, x'):
        broken = ImageFacts(width=11, height=20, digest='z', error=error)
        own = {'width': 7, 'height': 9}
        sample = sample_of(7, image=broken, sample=own)
        found = {each.rule for each in findings_of([*GOOD, sample])}
        assert not {each for each in found if each.startswith('PAIR')}


@pytest.mark.parametrize('orientation', [5, 6, 7, 8])
def test_turned_image(orientation):
    turned = image(10, 20, orientation)
    sample = sample_of(7, image=turned, mask=mask_of(VALUES))
    (finding,) = only('PAIR002', [*GOOD, sample])
    assert finding.value == str(orientation)


@pytest.mark.parametrize('orientation', [5, 6, 7, 8])
def test_mask_of_the_turned_image_is_fine(orientation):
    turned = image(20, 10, orientation)
    sample = sample_of(7, image=turned, mask=mask_of(VALUES))
    assert findings_of([*GOOD, sample]) == []


@pytest.mark.parametrize('orientation', [2, 3, 4])
def test_maybe_turned(orientation):
    turned = image(10, 20, orientation)
    sample = sample_of(7, image=turned, mask=mask_of(VALUES))
    assert only('PAIR003', [*GOOD, sample])


def test_noted_size():
    sample = sample_of(7, sample={'width': 12, 'height': 10})
    (finding,) = only('PAIR004', [*GOOD, sample])
    assert 'says 12 x 10, the image has 10 x 10' in finding.message


def test_noted_before_turn():
    sample = sample_of(
        7, image=image(10, 20, 6), mask=None, sample=TALL | {'mask': 'x'}
    )
    assert only('PAIR005', [*GOOD, sample])


def test_image_alone():
    sample = sample_of(7, mask=None, sample={'mask': ''})
    (finding,) = only('PAIR006', [*GOOD, sample])
    assert finding.file == 'train/7.jpg'


def test_mask_alone():
    sample = sample_of(7, image=None, sample={'image': ''})
    (finding,) = only('PAIR007', [*GOOD, sample])
    assert finding.file == 'train/7.png'
    # Label maps alone were to be checked.
    bare = replace(EXPECTED, with_images=False)
    found = findings_of([*GOOD, sample], bare)
    assert 'PAIR007' not in {each.rule for each in found}


def test_no_samples():
    assert only('PAIR008', [], EXPECTED)
