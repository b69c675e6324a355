"""Open and decode images of data sets, whatever their bytes are.

kornia-rs decodes what it can: PNG files of 8 and 16 bits a channel. Pillow
decodes the rest, and decides where kornia-rs gives up. Nothing is raised for
bytes that are no image; each failure becomes a sentence.
"""

import functools
import io
import re
from collections.abc import Callable

import kornia_rs
import msgspec
import numpy as np
from PIL import Image

from ..facts import ErrorKind, ReadError
from .png import PNG_SIGNATURE, PngHeader, png_data_error, walk_png

JPEG_SIGNATURE = b'\xff\xd8'
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = 0xD9
# Markers without a length: TEM, SOI.
_ALONE = (0x01, 0xD8)
# Not zeros stuffed into a scan, its restarts, or bytes to fill up. libjpeg
# goes over other bytes between markers, too.
_NO_SCAN = 'no pixels: the JPEG file has no scan'
_MARKER = re.compile(rb'\xff[^\x00\xd0-\xd7\xff]')


def jpeg_error(content: bytes) -> ReadError | None:
    """What is wrong with the markers of a JPEG file; 1 ms for 1 MB.

    A file that was cut off is found here whatever decoders make of it; it is
    not decoded, so bits flipped inside of a scan are not found. What follows
    the end of the image, such as further pictures, is not looked at.
    """
    position = len(JPEG_SIGNATURE)
    scans = 0
    while found := _MARKER.search(content, position):
        marker = content[found.start() + 1]
        position = found.end()
        if marker == _END_OF_IMAGE:
            return None if scans else _corrupt(_NO_SCAN)
        if marker in _ALONE:
            continue
        length = int.from_bytes(content[position : position + 2], 'big')
        if position + 2 <= len(content) and length < 2:
            return _corrupt(
                f'corrupt: JPEG marker at byte {found.start():,} has no length'
            )
        position += max(length, 2)
        scans += marker == _START_OF_SCAN
    where = f'inside of scan {scans}' if scans else 'before its first scan'
    return ReadError(
        ErrorKind.TRUNCATED,
        f'truncated: the file ends after {len(content):,} bytes, {where}, '
        'without the JPEG marker EOI',
    )


def _corrupt(text: str) -> ReadError:
    return ReadError(ErrorKind.CORRUPT, text)


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
_ORIENTATIONS = range(1, 9)
_SHOWN_BYTES = 8

_PNG_MODES = {0: 'L', 2: 'RGB', 3: 'P', 4: 'LA', 6: 'RGBA'}
_RUST_MODES = {
    # (colour, depth): (function, its mode)
    (0, 8): (kornia_rs.io.decode_image_png_u8, 'mono'),
    (3, 8): (kornia_rs.io.decode_image_png_u8, 'mono'),
    (2, 8): (kornia_rs.io.decode_image_png_u8, 'rgb'),
    (6, 8): (kornia_rs.io.decode_image_png_u8, 'rgba'),
    (0, 16): (kornia_rs.io.decode_image_png_u16, 'mono'),
}


class ImageHead(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told of an image before its pixels are decoded.

    Attributes:
        width: In pixels; 0 if it could not be read.
        height: In pixels.
        mode: As Pillow names it.
        kind: Format as Pillow names it, such as ``'PNG'``.
        orientation: EXIF orientation, 1 to 8; 1 without a valid one.
        png: Header of a PNG file, None for others.
        error: Why the pixels cannot be decoded, or shall not be.
        exif_error: Why the EXIF data cannot be read.
    """

    width: int = 0
    height: int = 0
    mode: str = ''
    kind: str = ''
    orientation: int = 1
    png: PngHeader | None = None
    error: ReadError | None = None
    exif_error: ReadError | None = None


def read_head(content: bytes, max_pixels: int) -> ImageHead:
    """Read the header of an image, and look for its end; takes no memory."""
    if not content:
        text = 'empty: the file has no bytes'
        return ImageHead(error=ReadError(ErrorKind.EMPTY, text))
    if content.startswith(PNG_SIGNATURE):
        head = _png_head(content)
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
    content: bytes, head: ImageHead, *, verify: bool = False
) -> tuple[np.ndarray, ReadError | None]:
    """Decode an image, as NumPy makes it from Pillow's: pixels and the error.

    ``(H, W)`` or ``(H, W, channels)``: a palette's indices, 0 and 1 for two
    levels, red first; colours that are neither grey nor RGB become RGB. Empty
    with an error. ``verify`` compares the pixels of a PNG file with their
    checksum; where kornia-rs refuses a file, this is done in any case.
    """
    png = head.png
    if png is not None and verify:
        error = png_data_error(content, png)
        if error:
            return np.empty(0, np.uint8), error
    if png is not None and not png.animated:
        function, mode = _RUST_MODES.get((png.colour, png.depth), (None, ''))
        if function is not None:
            shape = (head.height, head.width)
            pixels, _ = try_rust(function, content, shape, mode)
            if pixels is not None:
                return pixels.reshape(
                    shape if mode == 'mono' else (*shape, -1)
                ), None
    if png is not None and not verify:
        error = png_data_error(content, png)
        if error:
            return np.empty(0, np.uint8), error
    return by_pillow(content, head)


def try_rust(function: Callable, *args) -> tuple[np.ndarray | None, str]:
    """Result of a function of kornia-rs, None if it refuses; and why.

    kornia-rs has no class of its own for refusals; panics of Rust count, too.
    """
    try:
        return function(*args), ''
    except BaseException as error:
        plain = type(error) in (Exception, ValueError)
        if plain or type(error).__name__ == 'PanicException':
            return None, str(error)
        raise


@functools.cache
def _known_formats() -> tuple[str, ...]:
    """Those that this Pillow was built with."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _png_head(content: bytes) -> ImageHead:
    png = walk_png(content)
    mode = _PNG_MODES.get(png.colour, '')
    if png.colour == 0:
        mode = {1: '1', 16: 'I;16'}.get(png.depth, 'L')
    orientation, exif_error = 1, None
    if png.exif:
        orientation, exif_error = _orientation(lambda: _parsed_exif(png.exif))
    return ImageHead(
        width=png.width,
        height=png.height,
        mode=mode,
        kind='PNG',
        orientation=orientation,
        png=png,
        error=png.error,
        exif_error=exif_error,
    )


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
            kind=image.format or '',
            orientation=orientation,
            error=error,
            exif_error=exif_error,
        )


def _not_opened(content: bytes, error: BaseException) -> ReadError:
    if isinstance(error, Image.DecompressionBombError):
        return ReadError(ErrorKind.REFUSED, f'refused: {error}')
    if content.startswith(JPEG_SIGNATURE):
        found = jpeg_error(content)
        if found:
            return found
    start = content[:_SHOWN_BYTES].hex(' ')
    if type(error) is Image.UnidentifiedImageError:
        text = f'not an image: the file begins with the bytes {start}'
        return _corrupt(text)
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
