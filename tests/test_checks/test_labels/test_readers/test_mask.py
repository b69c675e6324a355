"""Facts of label maps, against Pillow and NumPy."""

import io
import zlib

import numpy as np
import pytest
from helpers import image_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from mmext.checks.labels.facts import MaskFacts
from mmext.checks.labels.readers import mask as _counting
from mmext.checks.labels.readers.mask import (
    MAX_VALUES,
    count_values,
    pack_colours,
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


@pytest.mark.parametrize('kind', ['PNG', 'BMP', 'TIFF', 'GIF'])
def test_formats(kind):
    content = image_bytes.saved(Image.fromarray(image_bytes.street()), kind)
    facts = read_mask_facts(content)
    assert (facts.values, facts.first, facts.mode) == by_numpy(content)
    assert facts.error is None


def test_palette_of_colours_gives_indices():
    pixels = image_bytes.street()
    image = Image.fromarray(pixels)
    image.putpalette(np.random.default_rng(0).bytes(768))
    facts = read_mask_facts(image_bytes.saved(image))
    assert facts.mode == 'P'
    assert facts.values == read_mask_facts(image_bytes.png(pixels)).values


def test_colours_are_packed():
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[1, 2] = (0x12, 0x34, 0x56)
    facts = read_mask_facts(image_bytes.png(pixels))
    assert facts.values == ((0, 5), (0x123456, 1))
    assert facts.first == (0, 5)


def test_16_bits_are_not_wrapped():
    pixels = np.array([[26001, 7], [7, 256]], np.uint16)
    facts = read_mask_facts(image_bytes.png(pixels))
    assert facts.values == ((7, 2), (256, 1), (26001, 1))
    assert facts.mode == 'I;16'


def test_more_values_than_listed():
    pixels = np.arange(10_000, dtype=np.uint16).reshape(100, 100)
    facts = read_mask_facts(image_bytes.png(pixels))
    assert facts.truncated
    assert len(facts.values) == len(facts.first) == 4096


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


def test_claimed_size_is_refused():
    content = image_bytes.bare_png(100_000, 100_000)
    facts = read_mask_facts(content)
    assert 'more than max_pixels' in facts.error.text
    assert (facts.width, facts.values) == (100_000, ())


def test_limit_of_the_caller():
    content = FILES['rgb']
    assert read_mask_facts(content, max_pixels=272).error.text == (
        '21 x 13 pixels are refused, more than max_pixels=272'
    )
    assert read_mask_facts(content, max_pixels=273).error is None


def test_fuzzed_files_end_in_an_error(rng):
    """None raises, and what Pillow cannot read gets an error."""
    jpeg = image_bytes.saved(Image.fromarray(image_bytes.photo()), 'JPEG')
    files = [image_bytes.png(image_bytes.street()), jpeg, *FILES.values()]
    unreadable = 0
    for content in image_bytes.fuzzed(files, 1000, rng):
        facts = read_mask_facts(content)
        try:
            with Image.open(io.BytesIO(content)) as image:
                image.load()
        except (OSError, SyntaxError, ValueError):
            unreadable += 1
            assert facts.error
        assert bool(facts.error) == (not facts.values)
    assert unreadable > 500


@pytest.mark.parametrize('name', ['grey_4', 'palette_8', 'rgb', 'grey_16'])
def test_checksum_of_the_pixels(name):
    """The CRCs are right: the file is as it was written."""
    good = FILES[name]
    begin = good.index(b'IDAT')
    end = good.index(b'IEND') - 8
    stream = good[begin + 4 : end - 1] + bytes([good[end - 1] ^ 1])
    content = (
        good[: begin - 4]
        + image_bytes.chunk(b'IDAT', stream)
        + good[good.index(b'IEND') - 4 :]
    )
    error = read_mask_facts(content, verify=True).error
    assert error.text.startswith('corrupt: the pixels cannot be inflated: ')
    assert read_mask_facts(good, verify=True) == read_mask_facts(good)


def test_pixels_are_held_against_their_checksum_only_if_asked_for():
    rows = b''.join(b'\x00' + bytes([n] * 50) for n in range(50))
    stream = zlib.compress(rows)[:-1] + b'?'
    content = image_bytes.bare_png(50, 50, rows)
    begin, end = content.index(b'IDAT') - 4, content.index(b'IEND') - 4
    damaged = (
        content[:begin] + image_bytes.chunk(b'IDAT', stream) + content[end:]
    )
    assert read_mask_facts(damaged) == read_mask_facts(content)
    assert (
        'incorrect data check'
        in read_mask_facts(damaged, verify=True).error.text
    )


def test_missing_rows_are_found_in_any_case():
    content = image_bytes.bare_png(50, 50, b'\x00' * 51 * 30)
    for verify in (False, True):
        error = read_mask_facts(content, verify=verify).error
        assert error.text.startswith(
            'truncated: the IDAT chunks hold 1,530 of'
        )


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
