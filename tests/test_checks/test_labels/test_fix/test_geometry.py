"""Boxes and polygons at the border of an image; sizes that are another."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from PIL import Image, ImageDraw

from mmext.checks.labels.fix.geometry import (
    area_of,
    clip_polygon,
)

numbers = st.integers(-30, 60) | st.floats(-30, 60)


def drawn(polygon, scale: int = 8) -> np.ndarray:
    """Pixels of the image that a polygon covers, finely."""
    margin = 40
    side = (100 + margin) * scale
    image = Image.new('1', (side, side))
    points = [
        ((x + margin) * scale, (y + margin) * scale)
        for x, y in zip(polygon[::2], polygon[1::2])
    ]
    if points:
        ImageDraw.Draw(image).polygon(points, fill=1)
    inner = slice(margin * scale, None)
    return np.asarray(image)[inner, inner][: 24 * scale, : 32 * scale]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=6))
def test_polygons_cover_the_same_part_of_the_image(points):
    polygon = [float(number) for point in points for number in point]
    cut = clip_polygon(polygon, 32, 24)
    assert all(0 <= x <= 32 + 1e-9 for x in cut[::2])
    assert all(0 <= y <= 24 + 1e-9 for y in cut[1::2])
    before, after = drawn(polygon), drawn(cut)
    # Edges may run through other subpixels, within two of the line.
    other = before != after
    assert other.mean() < 0.03
    assert clip_polygon(cut, 32 + 1e-9, 24 + 1e-9) == cut


@pytest.mark.parametrize(
    'segmentation',
    [
        None,
        [],
        [[]],
        [[0, 0, 1, 1]],
        [[0, 0, 1, 1, 2]],
        [[0, 0, 1, 1, 2, 'x']],
        [[0, 0, 1, float('nan'), 2, 2]],
        {'size': [1, 1], 'counts': ''},
        'text',
    ],
)
def test_no_area(segmentation):
    assert area_of(segmentation) is None


def test_area():
    square = [100000, 5, 100004, 5, 100004, 9, 100000, 9]
    assert area_of([square]) == 16
    assert area_of([square[::-1]]) == 16
    assert area_of([square, [0, 0, 2, 0, 0, 2]]) == 18
