"""Facts of images: size, damage, and hashes that find near-duplicates."""

import hashlib

import numpy as np
import pytest
from helpers import image_bytes
from PIL import Image

from mmext.checks.labels.readers.image import difference_hash, read_image_facts

PHOTO = Image.fromarray(image_bytes.photo(0, 480, 640, 30))
JPEG = image_bytes.saved(PHOTO, 'JPEG', quality=90)
# Bits of 64 that near-duplicates may differ by, and other images must.
NEAR = 6


def distance(first: int, second: int) -> int:
    return (first ^ second).bit_count()


def fingerprint(image: Image.Image, kind: str = 'PNG', **options) -> int:
    facts = read_image_facts(image_bytes.saved(image, kind, **options))
    assert facts.error is None
    return facts.fingerprint


@pytest.mark.parametrize('kind', ['PNG', 'JPEG', 'BMP', 'TIFF', 'WEBP'])
def test_plain_facts(kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {} if kind == 'BMP' else {'exif': exif}
    if kind == 'TIFF':
        options = {}
    content = image_bytes.saved(PHOTO, kind, **options)
    facts = read_image_facts(content)
    assert (facts.width, facts.height) == (640, 480)
    assert (facts.mode, facts.error) == ('RGB', None)
    assert facts.orientation == (6 if options else 1)
    assert facts.digest == hashlib.sha256(content).hexdigest()
    assert 0 < facts.fingerprint < 1 << 64


def test_hash_matches_the_plain_formula(rng):
    """Means of equal cells, compared with their right neighbours."""
    pixels = rng.integers(0, 256, (80, 90)).astype(np.float32)
    cells = pixels.reshape(8, 10, 9, 10).mean((1, 3))
    bits = ''.join(
        str(int(row[x + 1] > row[x])) for row in cells for x in range(8)
    )
    assert difference_hash(pixels) == int(bits, 2)


def test_near_duplicates():
    original = fingerprint(PHOTO)
    for image, kind, options in (
        (PHOTO, 'JPEG', {'quality': 90}),
        (PHOTO, 'JPEG', {'quality': 30}),
        (PHOTO, 'JPEG', {'quality': 75, 'progressive': True}),
        (PHOTO, 'WEBP', {'quality': 60}),
        (PHOTO.resize((320, 240)), 'JPEG', {}),
        (PHOTO.resize((1000, 700)), 'PNG', {}),
        (PHOTO.convert('L'), 'PNG', {}),
        (PHOTO.convert('RGBA'), 'PNG', {}),
        (PHOTO.convert('CMYK'), 'JPEG', {}),
        (PHOTO.quantize(128), 'PNG', {}),
        (PHOTO.point(lambda v: int(v * 0.8 + 20)), 'PNG', {}),
    ):
        near = fingerprint(image, kind, **options)
        assert distance(original, near) <= NEAR, (image, kind, options)


def test_damage_that_pillow_does_not_tell():
    """Bits flipped in a scan: Pillow reads on, libjpeg-turbo warns."""
    rng = np.random.default_rng(0)
    suspect = 0
    for position in rng.integers(len(JPEG) // 2, len(JPEG) - 2, 30):
        changed = bytearray(JPEG)
        changed[position] ^= 0x10
        facts = read_image_facts(bytes(changed))
        if facts.error:
            assert facts.error.text.startswith('suspect: libjpeg-turbo warns')
            assert facts.fingerprint >= 0
            suspect += 1
    assert suspect >= 5


def test_corrupt_exif_is_an_error():
    extra = image_bytes.chunk(b'eXIf', b'no TIFF header')
    rows = b'\x00' + bytes(range(9))
    content = image_bytes.bare_png(9, 1, rows, extra=extra)
    facts = read_image_facts(content)
    assert facts.error.text.startswith('corrupt: the EXIF data')
    assert facts.fingerprint >= 0
