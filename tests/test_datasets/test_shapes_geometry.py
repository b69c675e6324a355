"""Outlines against their areas, placement against its promises."""

import math
from itertools import pairwise

import numpy as np
import pytest

from mmext.datasets.shapes_generator import (
    SHAPE_CLASSES,
    place_shapes,
    unit_outline,
)


def polygon_area(corners: np.ndarray) -> float:
    """Area by the trapezoid rule."""
    closed = [*corners, corners[0]]
    return abs(sum(a[0] * b[1] - a[1] * b[0] for a, b in pairwise(closed)) / 2)


AREAS = {
    'circle': 20 * 0.9**2 * math.sin(math.pi / 20),
    'square': 2.0,
    'triangle': 3 * math.sqrt(3) / 4,
    'star': 10 * 0.42 * math.sin(math.pi / 5) / 2,
    'ring': 20 * (0.95**2 - 0.5**2) * math.sin(math.pi / 20),
    'cross': 4 * 2 * 0.27 * 0.95 - 4 * 0.27**2,
}


@pytest.mark.parametrize('name', SHAPE_CLASSES)
def test_outline_has_its_area(name: str):
    outer, *holes = unit_outline(name)
    area = polygon_area(outer) - sum(map(polygon_area, holes))
    assert area == pytest.approx(AREAS[name], rel=1e-9)
    for contour in (outer, *holes):
        assert np.linalg.norm(contour, axis=1).max() <= 1 + 1e-9


def placed_shapes(seed: int, **changes) -> list:
    settings = dict(count=8, width=96, height=64, min_visible=0.5) | changes
    return place_shapes(np.random.default_rng(seed), **settings)


def test_what_is_seen_is_inside_disjoint_and_tight():
    for seed in range(30):
        taken = np.zeros((64, 96), dtype=bool)
        for shape in placed_shapes(seed):
            rows, columns = shape.window
            assert 0 <= rows.start < rows.stop <= 64
            assert 0 <= columns.start < columns.stop <= 96
            assert min(shape.visible.shape) >= 4
            for edge in (0, -1):
                assert shape.visible[edge].any()
                assert shape.visible[:, edge].any()
            assert not (taken[shape.window] & shape.visible).any()
            taken[shape.window] |= shape.visible
            assert 0.5 <= shape.fraction <= 1


def test_some_shapes_are_covered_and_some_are_whole():
    fractions = [s.fraction for seed in range(30) for s in placed_shapes(seed)]
    assert min(fractions) < 0.6
    assert max(fractions) == 1


def test_ring_shows_what_is_below():
    """A ring that nothing covers has its hole in the mask."""
    ring = SHAPE_CLASSES.index('ring')
    holes = [
        shape.visible[shape.visible.shape[0] // 2]
        for seed in range(30)
        for shape in placed_shapes(seed, min_visible=1.0)
        if shape.label == ring
    ]
    assert holes
    for line in holes:
        assert not line[len(line) // 2]


def test_order_of_classes_is_free():
    labels = [s.label for seed in range(150) for s in placed_shapes(seed)]
    shares = np.bincount(labels, minlength=6) / len(labels)
    # 1200 draws: three standard deviations are 0.032.
    np.testing.assert_allclose(shares, 1 / 6, atol=0.033)
