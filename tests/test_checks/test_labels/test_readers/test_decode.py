"""Headers and pixels, against Pillow; refusals come before memory."""

import io
import zlib

import cv2
import kornia_rs
import numpy as np
import pytest
from helpers import image_bytes
from PIL import Image

from mmext.checks.labels.facts import DEFAULT_MAX_PIXELS
from mmext.checks.labels.readers import decode as _decode
from mmext.checks.labels.readers.decode import (
    DECODER_ERRORS,
    jpeg_error,
    open_image,
    pixels_of,
    read_head,
    try_rust,
)

PNG = image_bytes.kinds_of_images()
PHOTO = Image.fromarray(image_bytes.photo())
OTHERS = {
    'jpeg': image_bytes.saved(PHOTO, 'JPEG'),
    'jpeg_grey': image_bytes.saved(PHOTO.convert('L'), 'JPEG'),
    'bmp': image_bytes.saved(PHOTO, 'BMP'),
    'gif': image_bytes.saved(PHOTO, 'GIF'),
    'ppm': image_bytes.saved(PHOTO, 'PPM'),
    'tiff': image_bytes.saved(PHOTO, 'TIFF', compression='tiff_lzw'),
    'tiff_16': image_bytes.saved(
        Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30)),
        'TIFF',
    ),
    'tiff_int': image_bytes.saved(
        Image.fromarray(np.arange(600, dtype=np.int32).reshape(20, 30)), 'TIFF'
    ),
}
BY_RUST = {
    'palette_8',
    'palette_8_trns',
    'grey_8',
    'grey_8_trns',
    'grey_16',
    'rgb',
    'rgb_trns',
    'rgba',
    'interlaced',
}


def pillows(content: bytes) -> tuple[Image.Image, np.ndarray]:
    image = Image.open(io.BytesIO(content))
    return image, np.asarray(image)


@pytest.mark.parametrize('name', [*PNG, *OTHERS])
def test_matches_pillow(name):
    content = (PNG | OTHERS)[name]
    image, expected = pillows(content)
    head = read_head(content, DEFAULT_MAX_PIXELS)
    assert head.error is head.exif_error is None
    assert (head.width, head.height) == image.size
    assert (head.mode, head.kind) == (image.mode, image.format)
    pixels, error = pixels_of(content, head)
    assert error is None
    assert pixels.dtype == expected.dtype
    assert pixels.shape == expected.shape
    assert (pixels == expected).all()


@pytest.mark.parametrize('name', PNG)
def test_rust_decodes_what_it_can(name, monkeypatch):
    """So that Pillow is not asked in silence for what could be fast."""
    content = PNG[name]
    head = read_head(content, DEFAULT_MAX_PIXELS)
    monkeypatch.setattr(
        _decode, '_by_pillow', lambda *args: (np.empty(0), 'by Pillow')
    )
    _, error = pixels_of(content, head)
    assert (error is None) == (name in BY_RUST)


@pytest.mark.parametrize('seed', range(3))
def test_street_scenes_are_bit_exact(seed):
    pixels = image_bytes.street(seed, 200, 333)
    paletted = Image.fromarray(pixels)
    paletted.putpalette(list(range(256)) * 3)
    for content in (
        image_bytes.png(pixels),
        image_bytes.png(pixels, compress_level=1),
        cv2.imencode('.png', pixels)[1].tobytes(),
        image_bytes.saved(paletted),
    ):
        decoded, _ = pixels_of(content, read_head(content, 10**6))
        assert (decoded == pixels).all()


def test_other_colours_become_rgb():
    content = image_bytes.saved(PHOTO.convert('CMYK'), 'JPEG')
    head = read_head(content, DEFAULT_MAX_PIXELS)
    assert head.mode == 'CMYK'
    pixels, _ = pixels_of(content, head)
    expected = Image.open(io.BytesIO(content)).convert('RGB')
    assert (pixels == np.asarray(expected)).all()


def test_big_endian_pixels_become_native():
    pixels = np.arange(6, dtype='>u2').reshape(2, 3)
    image = Image.frombytes('I;16B', (3, 2), pixels.tobytes())
    content = image_bytes.saved(image, 'TIFF')
    decoded, _ = pixels_of(content, read_head(content, 100))
    assert decoded.dtype.isnative
    assert (decoded == pixels).all()


def test_claimed_size_is_refused_before_memory():
    content = image_bytes.bare_png(100_000, 100_000, b'\x00' * 100)
    head = read_head(content, DEFAULT_MAX_PIXELS)
    assert head.error.text == (
        '100000 x 100000 pixels are refused, more than max_pixels=178,956,970'
    )
    assert (head.width, head.height) == (100_000, 100_000)


def test_claimed_size_of_other_formats_is_refused():
    content = bytearray(OTHERS['bmp'])
    content[18:26] = (99_999).to_bytes(4, 'little') * 2
    error = read_head(bytes(content), DEFAULT_MAX_PIXELS).error
    assert error.text.startswith('refused: Image size (9999800001 pixels)')


def test_limit_is_inclusive():
    content = PNG['rgb']
    assert read_head(content, 13 * 21).error is None
    assert '21 x 13 pixels' in read_head(content, 13 * 21 - 1).error.text


@pytest.mark.parametrize('seed', range(1, 9))
def test_orientation(seed):
    exif = Image.Exif()
    exif[0x0112] = seed
    for kind in ('PNG', 'JPEG'):
        content = image_bytes.saved(PHOTO, kind, exif=exif)
        head = read_head(content, DEFAULT_MAX_PIXELS)
        assert head.orientation == seed
        assert (head.width, head.height) == PHOTO.size


def test_orientation_that_is_none():
    exif = Image.Exif()
    exif[0x0112] = 77
    content = image_bytes.saved(PHOTO, 'JPEG', exif=exif)
    assert read_head(content, DEFAULT_MAX_PIXELS).orientation == 1


def test_corrupt_exif_is_told():
    extra = image_bytes.chunk(b'eXIf', b'no TIFF header')
    content = image_bytes.bare_png(1, 1, b'\x00\x05', extra=extra)
    head = read_head(content, 100)
    assert head.error is None
    assert head.exif_error.text.startswith(
        'corrupt: the EXIF data cannot be read: '
    )


def test_no_image():
    assert read_head(b'', 9).error.text == 'empty: the file has no bytes'
    assert read_head(b'%PDF-1.7 more', 9).error.text == (
        'not an image: the file begins with the bytes 25 50 44 46 2d 31 2e 37'
    )


def test_formats_that_start_programs_are_no_images():
    content = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n'
    assert 'not an image' in read_head(content, 10**6).error.text
    with pytest.raises(OSError, match='cannot identify'):
        open_image(content)


def test_pixels_that_are_missing():
    content = image_bytes.bare_png(50, 50, b'\x00' * 60)
    head = read_head(content, DEFAULT_MAX_PIXELS)
    assert head.error is None
    pixels, error = pixels_of(content, head)
    assert pixels.size == 0
    assert error.text.startswith('truncated: the IDAT chunks hold 60 of 2,550')


def test_pixels_that_are_not_those_of_the_checksum():
    """kornia-rs does not look at it; Pillow refuses such a file."""
    rows = zlib.compress(b'\x00' * 51 * 50)
    content = image_bytes.bare_png(50, 50, b'')
    chunks = [
        image_bytes.chunk(b'IDAT', data)
        for data in (zlib.compress(b''), rows[:-1] + b'?')
    ]
    content = content.replace(*chunks)
    head = read_head(content, DEFAULT_MAX_PIXELS)
    assert head.error is None
    assert pixels_of(content, head)[1] is None
    pixels, error = pixels_of(content, head, verify=True)
    assert pixels.size == 0
    assert error.text.startswith('corrupt: the pixels cannot be inflated: ')


def test_every_error_of_pillow_is_caught():
    def raising(kind: type) -> Image.Exif:
        raise kind('here')

    for kind in DECODER_ERRORS:
        orientation, error = _decode._orientation(lambda k=kind: raising(k))
        assert orientation == 1
        assert 'here' in error.text


def test_refusals_of_rust_are_text():
    pixels, error = try_rust(
        kornia_rs.io.decode_image_png_u8, b'abc', (1, 1), 'mono'
    )
    assert pixels is None
    assert error.startswith('Failed to decode the png image.')


def test_panics_of_rust_are_text():
    class PanicException(BaseException):
        pass

    def panic():
        raise PanicException('index out of bounds')

    assert try_rust(panic) == (None, 'index out of bounds')


@pytest.mark.parametrize('kind', [KeyboardInterrupt, TypeError, MemoryError])
def test_rejects_what_is_no_refusal(kind):
    def fail():
        raise kind('on the way')

    with pytest.raises(kind, match='on the way'):
        try_rust(fail)


IMAGE = Image.fromarray(image_bytes.photo())
FILES = {
    'plain': image_bytes.saved(IMAGE, 'JPEG'),
    'progressive': image_bytes.saved(IMAGE, 'JPEG', progressive=True),
    'restarts': image_bytes.saved(IMAGE, 'JPEG', restart_marker_rows=1),
    'grey': image_bytes.saved(IMAGE.convert('L'), 'JPEG', quality=98),
    'cmyk': image_bytes.saved(IMAGE.convert('CMYK'), 'JPEG'),
    'comment': image_bytes.saved(IMAGE, 'JPEG', comment=b'\xff\xd9' * 9),
}
each = pytest.mark.parametrize('content', FILES.values(), ids=FILES)


@each
def test_sound_files_have_no_error(content):
    assert jpeg_error(content) is None
    assert jpeg_error(content + b'\x00' * 9) is None


@each
def test_every_cut_is_found(content):
    for length in range(2, len(content)):
        error = jpeg_error(content[:length])
        assert error.text.startswith('truncated: '), length


def test_the_place_is_named():
    error = jpeg_error(FILES['plain'][:1500])
    assert error.text == (
        'truncated: the file ends after 1,500 bytes, inside of scan 1, '
        'without the JPEG marker EOI'
    )
    assert 'before its first scan' in jpeg_error(FILES['plain'][:100]).text


def test_end_without_a_scan():
    assert 'no scan' in jpeg_error(b'\xff\xd8\xff\xd9').text


def test_marker_without_length():
    error = jpeg_error(b'\xff\xd8\xff\xe0\x00\x01\xff\xd9')
    assert error.text == 'corrupt: JPEG marker at byte 2 has no length'
