"""Sizes of images that EXIF turns."""

import pytest

from mmext.label_check.facts import ImageFacts
from mmext.label_check.rules._sizes import loaded_size


@pytest.mark.parametrize('orientation', range(1, 9))
def test_quarter_turns(orientation):
    image = ImageFacts(width=40, height=30, orientation=orientation)
    expected = (30, 40) if orientation >= 5 else (40, 30)
    assert loaded_size(image) == expected
