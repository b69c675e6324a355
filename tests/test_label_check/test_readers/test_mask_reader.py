"""Facts of label maps, against Pillow and NumPy."""

import io
import zlib

import image_bytes
import numpy as np
import pytest
from PIL import Image

from mmext.label_check import MaskFacts
from mmext.label_check.readers import read_mask_facts

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
    assert facts.error == ''


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
    assert facts.error.startswith(
        'floating-point pixels (mode F) are no class indices: '
    )
    assert facts.error.endswith(' at y=1, x=1')
    assert facts.values == ()


def test_claimed_size_is_refused():
    content = image_bytes.bare_png(100_000, 100_000)
    facts = read_mask_facts(content)
    assert 'more than max_pixels' in facts.error
    assert (facts.width, facts.values) == (100_000, ())


def test_limit_of_the_caller():
    content = FILES['rgb']
    assert read_mask_facts(content, max_pixels=272).error == (
        '21 x 13 pixels are refused, more than max_pixels=272'
    )
    assert read_mask_facts(content, max_pixels=273).error == ''


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
    assert error.startswith('corrupt: the pixels cannot be inflated: ')
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
        'incorrect data check' in read_mask_facts(damaged, verify=True).error
    )


def test_missing_rows_are_found_in_any_case():
    content = image_bytes.bare_png(50, 50, b'\x00' * 51 * 30)
    for verify in (False, True):
        error = read_mask_facts(content, verify=verify).error
        assert error.startswith('truncated: the IDAT chunks hold 1,530 of')


def test_missing_rows_of_palettes_and_of_few_bits():
    """Those that kornia-rs does not read are inflated in any case."""
    for depth in (1, 2, 4):
        content = image_bytes.bare_png(80, 50, b'\x00' * 99, depth=depth)
        error = read_mask_facts(content).error
        assert error.startswith('truncated: the IDAT chunks hold 99 of')
