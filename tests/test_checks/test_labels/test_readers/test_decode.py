"""Headers and pixels, against Pillow; refusals come before memory."""

import io

import numpy as np
import pytest
from helpers import image_bytes
from PIL import Image

from mmext.checks.labels.facts import DEFAULT_MAX_PIXELS
from mmext.checks.labels.readers.decode import (
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


def test_other_colours_become_rgb():
    content = image_bytes.saved(PHOTO.convert('CMYK'), 'JPEG')
    head = read_head(content, DEFAULT_MAX_PIXELS)
    assert head.mode == 'CMYK'
    pixels, _ = pixels_of(content, head)
    expected = Image.open(io.BytesIO(content)).convert('RGB')
    assert (pixels == np.asarray(expected)).all()


def test_formats_that_start_programs_are_no_images():
    content = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n'
    assert 'not an image' in read_head(content, 10**6).error.text
    with pytest.raises(OSError, match='cannot identify'):
        open_image(content)


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
every_file = pytest.mark.parametrize('content', FILES.values(), ids=FILES)


@every_file
def test_sound_files_have_no_error(content):
    assert jpeg_error(content) is None
    assert jpeg_error(content + b'\x00' * 9) is None


@every_file
def test_every_cut_is_found(content):
    for length in range(2, len(content)):
        error = jpeg_error(content[:length])
        assert error.text.startswith('truncated: '), length


def test_end_without_a_scan():
    assert 'no scan' in jpeg_error(b'\xff\xd8\xff\xd9').text


def test_marker_without_length():
    error = jpeg_error(b'\xff\xd8\xff\xe0\x00\x01\xff\xd9')
    assert error.text == 'corrupt: JPEG marker at byte 2 has no length'
