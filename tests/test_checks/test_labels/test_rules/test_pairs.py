import pytest
from helpers.label_facts import EXPECTED, findings_of, mask_of, only, sample_of
from msgspec.structs import replace

from mmext.checks.labels.facts import ErrorKind, ImageFacts, ReadError

GOOD = [sample_of(index) for index in range(3)]
VALUES = {0: 100, 1: 100}


def image(width: int, height: int, orientation: int = 1) -> ImageFacts:
    return ImageFacts(
        width=width, height=height, orientation=orientation, digest='z'
    )


def test_files_that_cannot_be_read_have_no_size():
    """They have an error of their own, of the reader."""
    for kind in (ErrorKind.TRUNCATED, ErrorKind.CORRUPT, ErrorKind.REFUSED):
        error = ReadError(kind, 'x')
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


def test_mask_alone():
    sample = sample_of(7, image=None, sample={'image': ''})
    (finding,) = only('PAIR007', [*GOOD, sample])
    assert finding.file == 'train/7.png'
    # Label maps alone were to be checked.
    bare = replace(EXPECTED, with_images=False)
    found = findings_of([*GOOD, sample], bare)
    assert 'PAIR007' not in {each.rule for each in found}
