"""Facts of label maps, against Pillow and NumPy."""

import io

import numpy as np
import pytest
from helpers import image_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from mmext.checks.labels.facts import MaskFacts
from mmext.checks.labels.readers.image import (
    MAX_VALUES,
    count_values,
    read_mask_facts,
)

FILES = image_bytes.kinds_of_images()


def by_numpy(content: bytes) -> tuple[tuple, tuple, str]:
    image = Image.open(io.BytesIO(content))
    pixels = np.asarray(image).astype(np.int64)
    if pixels.ndim == 3 and pixels.shape[-1] == 2:
        pixels = pixels[..., 0]
    elif pixels.ndim == 3:
        pixels = pixels[..., :3] @ np.array([65536, 256, 1])
    values, first, counts = np.unique(
        pixels, return_index=True, return_counts=True
    )
    pairs = tuple(zip(values.tolist(), counts.tolist()))
    return pairs, tuple(first.tolist()), image.mode


@pytest.mark.parametrize('name', FILES)
def test_matches_pillow_and_numpy(name):
    facts = read_mask_facts(FILES[name])
    values, first, mode = by_numpy(FILES[name])
    assert facts == MaskFacts(
        width=21, height=13, mode=mode, values=values, first=first
    )


def test_whole_floats_are_numbers():
    pixels = np.array([[1, 2], [2, -5]], np.float32)
    content = image_bytes.saved(Image.fromarray(pixels), 'TIFF')
    facts = read_mask_facts(content)
    assert facts.values == ((-5, 1), (1, 1), (2, 2))
    assert facts.mode == 'F'


@pytest.mark.parametrize('bad', [0.5, np.nan, np.inf, 1e30])
def test_other_floats_are_no_indices(bad):
    pixels = np.array([[1, 2], [2, bad]], np.float32)
    content = image_bytes.saved(Image.fromarray(pixels), 'TIFF')
    facts = read_mask_facts(content)
    assert facts.error.text.startswith(
        'floating-point pixels (mode F) are no class indices: '
    )
    assert facts.error.text.endswith(' at y=1, x=1')
    assert facts.values == ()


def test_missing_rows_of_palettes_and_of_few_bits():
    """Those that kornia-rs does not read are inflated in any case."""
    for depth in (1, 2, 4):
        content = image_bytes.bare_png(80, 50, b'\x00' * 99, depth=depth)
        error = read_mask_facts(content).error
        assert error.text.startswith('truncated: the IDAT chunks hold 99 of')


def expected(pixels: np.ndarray) -> tuple[tuple, tuple]:
    values, first, counts = np.unique(
        pixels, return_index=True, return_counts=True
    )
    pairs = tuple(zip(values.astype(int).tolist(), counts.tolist()))
    return pairs, tuple(first.tolist())


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


def test_too_many_values_keep_the_most_frequent():
    numbers = np.arange(5000, dtype=np.int32)
    pixels = np.concatenate([numbers, numbers[-10:]]).reshape(10, 501)
    values, first, truncated = count_values(pixels)
    assert truncated
    assert len(values) == len(first) == MAX_VALUES
    assert values[-10:] == tuple((v, 2) for v in range(4990, 5000))
    assert first[-10:] == tuple(range(4990, 5000))
    assert values[:2] == ((0, 1), (1, 1))
