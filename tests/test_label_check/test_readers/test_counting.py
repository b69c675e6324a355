"""Counts, first pixels, and colours as numbers, against NumPy."""

import image_bytes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mmext.label_check.readers import _counting
from mmext.label_check.readers._counting import (
    MAX_VALUES,
    count_values,
    pack_colours,
)


def expected(pixels: np.ndarray) -> tuple[tuple, tuple]:
    values, first, counts = np.unique(
        pixels, return_index=True, return_counts=True
    )
    pairs = tuple(zip(values.astype(int).tolist(), counts.tolist()))
    return pairs, tuple(first.tolist())


@pytest.mark.parametrize('dtype', ['?', 'u1', 'u2', 'i4', 'i2'])
@pytest.mark.parametrize('levels', [1, 2, 200])
def test_matches_unique_for_noise(dtype, levels, rng):
    pixels = rng.integers(0, levels, (41, 67)).astype(dtype)
    values, first, truncated = count_values(pixels)
    assert (values, first) == expected(pixels)
    assert not truncated


@pytest.mark.parametrize('dtype', ['u1', 'u2', 'i4'])
def test_matches_unique_for_labels(dtype):
    pixels = image_bytes.street(3).astype(dtype)
    assert count_values(pixels)[:2] == expected(pixels)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(['u1', 'u2', 'i4']).flatmap(
        lambda dtype: hnp.arrays(
            dtype, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)
        )
    )
)
def test_matches_unique_for_anything(pixels):
    assert count_values(pixels)[:2] == expected(pixels)


def test_one_pixel():
    pixels = np.full((1, 1), 9, np.uint8)
    assert count_values(pixels) == (((9, 1),), (0,), False)


def test_negative_values_keep_their_order():
    pixels = np.array([[5, -3], [-3, -(2**31)]], np.int32)
    assert count_values(pixels) == (
        ((-(2**31), 1), (-3, 2), (5, 1)),
        (3, 1, 0),
        False,
    )


def test_noise_counts_are_exact_where_float32_would_round(monkeypatch, rng):
    monkeypatch.setattr(_counting, '_EXACT', 100)
    pixels = rng.integers(0, 256, (41, 67)).astype(np.uint8)
    assert count_values(pixels)[:2] == expected(pixels)


def test_too_many_values_keep_the_most_frequent():
    numbers = np.arange(5000, dtype=np.int32)
    pixels = np.concatenate([numbers, numbers[-10:]]).reshape(10, 501)
    values, first, truncated = count_values(pixels)
    assert truncated
    assert len(values) == len(first) == MAX_VALUES
    assert values[-10:] == tuple((v, 2) for v in range(4990, 5000))
    assert first[-10:] == tuple(range(4990, 5000))
    assert values[:2] == ((0, 1), (1, 1))


def test_does_not_change_inputs(rng):
    pixels = rng.integers(0, 9, (8, 9)).astype(np.uint16)
    copy = pixels.copy()
    count_values(pixels)
    assert (pixels == copy).all()


def test_packed_colours(rng):
    pixels = rng.integers(0, 256, (5, 7, 4)).astype(np.uint8)
    wide = pixels.astype(np.int64)
    plain = wide[..., 0] * 65536 + wide[..., 1] * 256 + wide[..., 2]
    assert (pack_colours(pixels) == plain).all()
