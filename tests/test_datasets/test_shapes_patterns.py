"""Patterns: range, period, seeds, and that none is constant by mistake."""

import numpy as np
import pytest

from mmext.datasets.shapes_patterns import PATTERNS, draw_pattern


@pytest.mark.parametrize('name', PATTERNS)
def test_shape_dtype_and_range(name: str, rng: np.random.Generator):
    for height, width in ((1, 1), (4, 9), (37, 20)):
        weights = draw_pattern(
            name, rng, height=height, width=width, scale=30.0
        )
        assert weights.shape == (height, width)
        assert weights.dtype == np.float32
        assert weights.min() >= 0
        assert weights.max() <= 1


@pytest.mark.parametrize('name', PATTERNS)
def test_seeded(name: str):
    def draw(seed):
        rng = np.random.default_rng(seed)
        return draw_pattern(name, rng, height=24, width=32, scale=40.0)

    np.testing.assert_array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))


@pytest.mark.parametrize('name', sorted(set(PATTERNS) - {'plain'}))
def test_uses_both_colours(name: str, rng: np.random.Generator):
    for _ in range(20):
        weights = draw_pattern(name, rng, height=64, width=64, scale=64.0)
        assert weights.min() < 0.3
        assert weights.max() > 0.7


def test_plain_is_one_colour(rng: np.random.Generator):
    weights = draw_pattern('plain', rng, height=9, width=9, scale=9.0)
    assert np.ptp(weights) == 0


def test_checker_has_as_much_of_each_colour(rng: np.random.Generator):
    for _ in range(10):
        weights = draw_pattern('checker', rng, height=99, width=99, scale=99.0)
        assert set(np.unique(weights)) == {0, 1}
        assert abs(weights.mean() - 0.5) < 0.1


def test_period_follows_the_scale():
    def changes(scale):
        rng = np.random.default_rng(3)
        weights = draw_pattern(
            'stripes', rng, height=1, width=2000, scale=scale
        )
        return np.count_nonzero(np.diff(weights))

    # The same draws, four times as wide.
    assert changes(100.0) / changes(400.0) == pytest.approx(4, rel=0.1)


def test_rejects_unknown_name(rng: np.random.Generator):
    with pytest.raises(ValueError, match=r"must be one of .* got 'tartan'"):
        draw_pattern('tartan', rng, height=2, width=2, scale=2.0)
