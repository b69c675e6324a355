"""The walk over JPEG markers: a file that was cut off is found."""

import image_bytes
import pytest
from PIL import Image

from mmext.label_check.readers._jpeg import jpeg_error

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
    assert jpeg_error(content) == ''
    assert jpeg_error(content + b'\x00' * 9) == ''


@each
def test_every_cut_is_found(content):
    for length in range(2, len(content)):
        error = jpeg_error(content[:length])
        assert error.startswith('truncated: '), length


def test_the_place_is_named():
    error = jpeg_error(FILES['plain'][:1500])
    assert error == (
        'truncated: the file ends after 1,500 bytes, inside of scan 1, '
        'without the JPEG marker EOI'
    )
    assert 'before its first scan' in jpeg_error(FILES['plain'][:100])


def test_end_without_a_scan():
    assert 'no scan' in jpeg_error(b'\xff\xd8\xff\xd9')


def test_marker_without_length():
    error = jpeg_error(b'\xff\xd8\xff\xe0\x00\x01\xff\xd9')
    assert error == 'corrupt: JPEG marker at byte 2 has no length'
