import pytest
from helpers.label_facts import findings_of, mask_of, sample_of

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
        findings = {finding.rule for finding in findings_of([*GOOD, sample])}
        assert not {
            finding for finding in findings if finding.startswith('PAIR')
        }


@pytest.mark.parametrize('orientation', [5, 6, 7, 8])
def test_mask_of_the_turned_image_is_fine(orientation):
    turned = image(20, 10, orientation)
    sample = sample_of(7, image=turned, mask=mask_of(VALUES))
    assert findings_of([*GOOD, sample]) == []
