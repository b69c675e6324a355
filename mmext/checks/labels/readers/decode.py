"""Open and decode images of data sets, whatever their bytes are.

kornia-rs decodes what it can: PNG files of 8 and 16 bits a channel. Pillow
decodes the rest, and decides where kornia-rs gives up. Nothing is raised for
bytes that are no image; each failure becomes a sentence.

Decoders differ in what they check, and some stop after the pixels. What a file
has lost or had flipped is found for all by a walk over the chunks of PNG, and
the markers of JPEG files.
"""

import functools
import io
import re
import struct
import zlib
from collections.abc import Callable

import kornia_rs
import msgspec
import numpy as np
from PIL import Image

from ..facts import ErrorKind, ReadError

PNG_SIGNATURE = b'\x89PNG\r\n\x1a\n'
_FRAME = 12  # Bytes of a chunk apart from its data: length, type, CRC.
_IHDR_LENGTH = 13
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_AT_ONCE = 1 << 18
_PNG_MODES = {0: 'L', 2: 'RGB', 3: 'P', 4: 'LA', 6: 'RGBA'}


class ImageHead(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told of an image before its pixels are decoded."""

    width: int = 0  # In pixels; 0 if it could not be read.
    height: int = 0  # In pixels.
    mode: str = ''  # As Pillow names it.
    kind: str = ''  # Format as Pillow names it, such as 'PNG'.
    orientation: int = 1  # EXIF orientation, 1 to 8; 1 without a valid one.
    depth: int = 0  # Of a PNG or TIFF file, bits of a channel.
    # Of a PNG file: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA; -1 for
    # others, and without a header.
    colour: int = -1
    # Of a PNG file, where the data of its pixels begin and end.
    pixels: tuple[tuple[int, int], ...] = ()
    animated: bool = False  # A PNG file has a chunk of an animation.
    # Why the pixels cannot be decoded, or shall not be.
    error: ReadError | None = None
    exif_error: ReadError | None = None  # Why the EXIF data cannot be read.


def _corrupt(text: str) -> ReadError:
    return ReadError(ErrorKind.CORRUPT, text)


def _truncated(text: str) -> ReadError:
    return ReadError(ErrorKind.TRUNCATED, f'truncated: {text}')


def walk_png(content: bytes) -> ImageHead:
    """Read the header of a PNG file, and check all its chunks; no pixel."""
    begin = len(PNG_SIGNATURE)
    kind, end, error = _next_chunk(content, begin)
    length = end - begin - _FRAME
    if not error and (kind != b'IHDR' or length != _IHDR_LENGTH):
        error = _corrupt(
            f'the first chunk must be IHDR of 13 bytes, got {_name(kind)} of '
            f'{length}'
        )
    if error:
        return ImageHead(kind='PNG', error=error)
    width, height, depth, colour = struct.unpack_from('>IIBB', content, 16)
    mode = _PNG_MODES.get(colour, '')
    if colour == 0:
        mode = {1: '1', 16: 'I;16'}.get(depth, 'L')
    if not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        error = _corrupt(f'the header claims {width} x {height} pixels')
    kinds = set()
    exif, pixels = b'', []
    while not error and b'IEND' not in kinds:
        begin = end
        kind, end, error = _next_chunk(content, begin)
        kinds.add(kind)
        if kind == b'eXIf':
            exif = content[begin + 8 : end - 4]
        elif kind == b'IDAT':
            pixels.append((begin + 8, end - 4))
    if not error and b'IDAT' not in kinds:
        error = _corrupt('no pixels: the file has no IDAT chunk')
    orientation, exif_error = 1, None
    if exif:
        orientation, exif_error = _orientation(lambda: _parsed_exif(exif))
    return ImageHead(
        width=width,
        height=height,
        mode=mode,
        kind='PNG',
        orientation=orientation,
        depth=depth,
        colour=colour,
        animated=b'acTL' in kinds,
        pixels=tuple(pixels),
        error=error,
        exif_error=exif_error,
    )


def png_data_error(content: bytes, header: ImageHead) -> ReadError | None:
    """Inflate the pixels of a PNG file, to see that they are all there.

    Checksums of chunks tell what befell a file after it was written. A writer
    that stopped early, or wrote what memory had damaged, is found only here:
    decoders fill up missing rows, or do not look at the checksum of the whole.
    More than the pixels is no error. Takes 2 ms for a label map of 2048x1024
    pixels, 15 ms for such a photo; memory does not depend on what the file
    claims.
    """
    # Each row with the byte of its filter; interlaced files have more.
    bits = header.depth * _CHANNELS.get(header.colour, 0)
    wanted = header.height * (1 + (header.width * bits + 7) // 8)
    inflate = zlib.decompressobj()
    size = 0
    try:
        for begin, end in header.pixels:
            part = memoryview(content)[begin:end]
            while part and size <= wanted:
                size += len(inflate.decompress(part, _AT_ONCE))
                part = inflate.unconsumed_tail
        if size < wanted:
            size += len(inflate.flush())
    except zlib.error as error:
        return _corrupt(f'corrupt: the pixels cannot be inflated: {error}')
    if size < wanted:
        return _truncated(
            f'the IDAT chunks hold {size:,} of {wanted:,} bytes of pixels'
        )
    return None


def _next_chunk(
    content: bytes, begin: int
) -> tuple[bytes, int, ReadError | None]:
    """Type and end of the chunk at a position, and what is wrong with it."""
    left = len(content) - begin
    ends = f'the file ends after {len(content):,} bytes, '
    if left < _FRAME:
        return b'', begin, _truncated(f'{ends}before chunk IEND')
    length, kind = struct.unpack_from('>I4s', content, begin)
    if not (kind.isalpha() and kind.isascii()):
        error = _corrupt(f'corrupt: no chunk begins at byte {begin:,}')
        return kind, begin, error
    if length > left - _FRAME:
        error = _truncated(
            f'{ends}inside of chunk {_name(kind)} at byte {begin:,}, which '
            f'claims {length:,} bytes'
        )
        return kind, begin, error
    end = begin + length + _FRAME
    (claimed,) = struct.unpack_from('>I', content, end - 4)
    actual = zlib.crc32(memoryview(content)[begin + 4 : end - 4])
    error = None
    if actual != claimed:
        error = _corrupt(
            f'corrupt: CRC of chunk {_name(kind)} at byte {begin:,} is '
            f'{actual:08x}, the file says {claimed:08x}'
        )
    return kind, end, error


def _name(kind: bytes) -> str:
    return kind.decode('ascii', 'backslashreplace')


JPEG_SIGNATURE = b'\xff\xd8'
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = 0xD9
# Markers without a length: TEM, SOI.
_ALONE = (0x01, 0xD8)
# Not zeros stuffed into a scan, its restarts, or bytes to fill up. libjpeg
# goes over other bytes between markers, too.
_MARKER = re.compile(rb'\xff[^\x00\xd0-\xd7\xff]')


def jpeg_error(content: bytes) -> ReadError | None:
    """What is wrong with the markers of a JPEG file; 1 ms for 1 MB.

    A file that was cut off is found here whatever decoders make of it; it is
    not decoded, so bits flipped inside of a scan are not found. What follows
    the end of the image, such as further pictures, is not looked at.
    """
    position = len(JPEG_SIGNATURE)
    scans = 0
    while match := _MARKER.search(content, position):
        marker = content[match.start() + 1]
        position = match.end()
        if marker == _END_OF_IMAGE:
            no_scan = _corrupt('no pixels: the JPEG file has no scan')
            return None if scans else no_scan
        if marker in _ALONE:
            continue
        length = int.from_bytes(content[position : position + 2], 'big')
        if position + 2 <= len(content) and length < 2:
            return _corrupt(
                f'corrupt: JPEG marker at byte {match.start():,} has no length'
            )
        position += max(length, 2)
        scans += marker == _START_OF_SCAN
    where = f'inside of scan {scans}' if scans else 'before its first scan'
    return _truncated(
        f'the file ends after {len(content):,} bytes, {where}, without the '
        'JPEG marker EOI'
    )


# What Pillow raises for damaged files: each plugin whatever it meets. It is
# to be caught around calls of Pillow alone.
DECODER_ERRORS = (Exception,)

# Those that data sets are made of. Other plugins of Pillow start programs
# (EPS), or take any bytes for an image (TGA).
_FORMATS = (
    'AVIF',
    'BMP',
    'GIF',
    'JPEG',
    'JPEG2000',
    'PNG',
    'PPM',
    'TIFF',
    'WEBP',
)
_ORIENTATION = 0x0112
_BITS_PER_SAMPLE = 0x0102
_ORIENTATIONS = range(1, 9)
_SHOWN_BYTES = 8

_RUST_MODES = {
    # (colour, depth): (function, its mode)
    (0, 8): (kornia_rs.io.decode_image_png_u8, 'mono'),
    (3, 8): (kornia_rs.io.decode_image_png_u8, 'mono'),
    (2, 8): (kornia_rs.io.decode_image_png_u8, 'rgb'),
    (6, 8): (kornia_rs.io.decode_image_png_u8, 'rgba'),
    (0, 16): (kornia_rs.io.decode_image_png_u16, 'mono'),
}


def read_head(content: bytes, max_pixels: int) -> ImageHead:
    """Read the header of an image, and look for its end; takes no memory."""
    if not content:
        text = 'empty: the file has no bytes'
        return ImageHead(error=ReadError(ErrorKind.EMPTY, text))
    if content.startswith(PNG_SIGNATURE):
        head = walk_png(content)
    else:
        head = _other_head(content)
    if head.width * head.height > max_pixels:
        error = ReadError(
            ErrorKind.REFUSED,
            f'{head.width} x {head.height} pixels are refused, more than '
            f'max_pixels={max_pixels:,}',
        )
        return msgspec.structs.replace(head, error=error)
    return head


def open_image(content: bytes) -> Image.Image:
    """Open an image with Pillow, if it is in a format of data sets.

    Raises OSError if it is none, and what else is in :data:`DECODER_ERRORS`.
    """
    return Image.open(io.BytesIO(content), formats=_known_formats())


def pixels_of(
    content: bytes, head: ImageHead
) -> tuple[np.ndarray, ReadError | None]:
    """Decode an image, as NumPy makes it from Pillow's: pixels and the error.

    ``(H, W)`` or ``(H, W, channels)``: a palette's indices, 0 and 1 for two
    levels, red first; colours that are neither grey nor RGB become RGB. Empty
    with an error.
    """
    is_png = head.kind == 'PNG'
    if is_png and not head.animated:
        function, mode = _RUST_MODES.get((head.colour, head.depth), (None, ''))
        if function is not None:
            shape = (head.height, head.width)
            pixels = try_rust(function, content, shape, mode)
            if pixels is not None:
                return pixels.reshape(
                    shape if mode == 'mono' else (*shape, -1)
                ), None
    if is_png:
        error = png_data_error(content, head)
        if error:
            return np.empty(0, np.uint8), error
    return by_pillow(content, head)


def try_rust(function: Callable, *args) -> np.ndarray | None:
    """Result of a function of kornia-rs; None if it refuses.

    kornia-rs has no class of its own for refusals; panics of Rust count, too.
    """
    try:
        return function(*args)
    except BaseException as error:
        plain = type(error) in (Exception, ValueError)
        if plain or type(error).__name__ == 'PanicException':
            return None
        raise


@functools.cache
def _known_formats() -> tuple[str, ...]:
    """Those that this Pillow was built with."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _other_head(content: bytes) -> ImageHead:
    try:
        image = open_image(content)
    except DECODER_ERRORS as error:
        return ImageHead(error=_not_opened(content, error))
    with image:
        orientation, exif_error = _orientation(image.getexif)
        error = None
        if content.startswith(JPEG_SIGNATURE):
            error = jpeg_error(content)
        return ImageHead(
            width=image.width,
            height=image.height,
            mode=image.mode,
            depth=_tiff_depth(image),
            kind=image.format or '',
            orientation=orientation,
            error=error,
            exif_error=exif_error,
        )


def _tiff_depth(image: Image.Image) -> int:
    """Bits of a channel; 0 if it is no TIFF file, or does not say."""
    tags = getattr(image, 'tag_v2', {})
    bits = tags.get(_BITS_PER_SAMPLE, 0)
    bits = bits if isinstance(bits, tuple) else (bits,)
    return max((b for b in bits if isinstance(b, int)), default=0)


def _not_opened(content: bytes, error: BaseException) -> ReadError:
    if isinstance(error, Image.DecompressionBombError):
        return ReadError(ErrorKind.REFUSED, f'refused: {error}')
    if content.startswith(JPEG_SIGNATURE):
        damage = jpeg_error(content)
        if damage:
            return damage
    start = content[:_SHOWN_BYTES].hex(' ')
    if type(error) is Image.UnidentifiedImageError:
        return _corrupt(
            f'not an image: the file begins with the bytes {start}'
        )
    return _corrupt(
        f'not a readable image: {_said(error)}; the file begins with the '
        f'bytes {start}'
    )


def _parsed_exif(data: bytes) -> Image.Exif:
    exif = Image.Exif()
    exif.load(data)
    return exif


def _orientation(
    read: Callable[[], Image.Exif],
) -> tuple[int, ReadError | None]:
    try:
        value = read().get(_ORIENTATION, 1)
    except DECODER_ERRORS as error:
        text = f'corrupt: the EXIF data cannot be read: {_said(error)}'
        return 1, _corrupt(text)
    return (value if value in _ORIENTATIONS else 1), None


def by_pillow(
    content: bytes, head: ImageHead, *, grey_size: tuple[int, int] = (0, 0)
) -> tuple[np.ndarray, ReadError | None]:
    """As :func:`pixels_of`; grey, and perhaps reduced to a size above that."""
    try:
        with open_image(content) as image:
            if any(grey_size):
                image.draft('L', grey_size)
                image = image.convert('L')
            elif image.mode in ('CMYK', 'YCbCr', 'HSV', 'LAB'):
                image = image.convert('RGB')
            pixels = np.asarray(image)
    except DECODER_ERRORS as error:
        return np.empty(0, np.uint8), _corrupt(
            f'corrupt: the {head.kind} data cannot be decoded: {_said(error)}'
        )
    # TIFF files keep the byte order that they were written with.
    return pixels.astype(pixels.dtype.newbyteorder('='), copy=False), None


def _said(error: BaseException) -> str:
    return f'{type(error).__name__}: {error}' if str(error) else repr(error)
