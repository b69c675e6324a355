"""The walk over PNG chunks: each damage is named, with its location."""

import zlib

import pytest
from helpers import image_bytes

from mmext.checks.labels.facts import ReadError
from mmext.checks.labels.readers.decode import (
    PNG_SIGNATURE,
    png_data_error,
    walk_png,
)

PLAIN = image_bytes.png(image_bytes.street())


@pytest.mark.parametrize(
    ('name', 'content'), image_bytes.kinds_of_images().items()
)
def test_sound_files_have_no_error(name, content):
    header = walk_png(content)
    assert header.error is None
    assert (header.width, header.height) == (21, 13)
    assert header.animated == (name == 'animated')


def test_every_cut_is_found():
    for length in range(len(PNG_SIGNATURE), len(PLAIN)):
        error = walk_png(PLAIN[:length]).error
        assert error.text.startswith('truncated: '), length
        assert f'after {length:,} bytes' in error.text


def test_every_flipped_bit_is_found():
    for position in range(len(PNG_SIGNATURE), len(PLAIN)):
        changed = bytearray(PLAIN)
        changed[position] ^= 1 << (position % 8)
        assert walk_png(bytes(changed)).error, position


def test_first_chunk_must_be_the_header():
    content = PNG_SIGNATURE + image_bytes.chunk(b'IDAT', b'abc')
    assert (
        'must be IHDR of 13 bytes, got IDAT of 3'
        in walk_png(content).error.text
    )


ROWS = b''.join(b'\0' + row.tobytes() for row in image_bytes.street())


def data_error(stream: bytes, cuts: int = 1) -> ReadError | None:
    """Of a file with that zlib stream, and with the right CRCs."""
    size = -(-len(stream) // cuts)
    parts = [stream[i : i + size] for i in range(0, len(stream), size)]
    content = (
        PLAIN[:33]
        + b''.join(image_bytes.chunk(b'IDAT', part) for part in parts)
        + image_bytes.chunk(b'IEND', b'')
    )
    header = walk_png(content)
    assert header.error is None
    return png_data_error(content, header)


@pytest.mark.parametrize('cuts', [1, 2, 7])
def test_missing_rows(cuts):
    """Pillow fills them with zeros and says nothing."""
    assert data_error(zlib.compress(ROWS), cuts) is None
    error = data_error(zlib.compress(ROWS[:-1]), cuts)
    assert error.text.startswith(
        'truncated: the IDAT chunks hold 12,383 of 12,384'
    )
    error = data_error(zlib.compress(ROWS)[:-500], cuts)
    assert error.text.startswith('truncated: the IDAT chunks hold ')
    assert data_error(zlib.compress(b'')).text.startswith(
        'truncated: the IDAT chunks hold 0 of'
    )


def test_every_flip_before_the_checksums_is_found(rng):
    """The CRCs are right: memory was damaged before the file was written."""
    stream = zlib.compress(ROWS)
    for position in rng.integers(0, len(stream), 300):
        changed = bytearray(stream)
        changed[position] ^= 1 << int(rng.integers(8))
        try:
            same = zlib.decompress(changed) == ROWS
        except zlib.error:
            same = False
        assert same or data_error(bytes(changed)), position


def test_more_than_the_pixels_is_no_error():
    assert data_error(zlib.compress(ROWS + b'more' * 99)) is None
    assert data_error(zlib.compress(ROWS) + b'more') is None
    # Nor is a checksum that was left out: all pixels are there.
    assert data_error(zlib.compress(ROWS)[:-4]) is None
