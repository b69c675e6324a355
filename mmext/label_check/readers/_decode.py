"""Open and decode images of data sets, whatever their bytes are.

kornia-rs decodes what it can: PNG files of 8 and 16 bits a channel. Pillow
decodes the rest, and decides where kornia-rs gives up. Nothing is raised for
bytes that are no image; each failure becomes a sentence.
"""

import functools
import io
import struct
import zlib
from collections.abc import Callable

import kornia_rs
import msgspec
import numpy as np
from PIL import Image

from ._jpeg import JPEG_SIGNATURE, jpeg_error
from ._png import PNG_SIGNATURE, PngHeader, png_data_error, walk_png

__all__ = [
    'DECODER_ERRORS',
    'DEFAULT_MAX_PIXELS',
    'ImageHead',
    'open_image',
    'pixels_of',
    'read_head',
    'try_rust',
]

# What Pillow itself refuses, unless it was told otherwise.
DEFAULT_MAX_PIXELS = 178_956_970

# What Pillow raises for damaged files. Its warnings are among them, for who
# has turned those into errors.
DECODER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    Image.DecompressionBombError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    Warning,
    struct.error,
    zlib.error,
)

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
    error: str = ''
    exif_error: str = ''


def read_head(content: bytes, max_pixels: int) -> ImageHead:
    """Read the header of an image, and look for its end.

    Args:
        content: Of the file.
        max_pixels: Larger images get an error.

    Returns:
        The header, as far as it could be read, and the first error.

    Note:
        Memory for the pixels is not asked for.
    """
    if not content:
        return ImageHead(error='empty: the file has no bytes')
    if content.startswith(PNG_SIGNATURE):
        head = _png_head(content)
    else:
        head = _other_head(content)
    if head.width * head.height > max_pixels:
        error = (
            f'{head.width} x {head.height} pixels are refused, more than '
            f'max_pixels={max_pixels:,}'
        )
        return msgspec.structs.replace(head, error=error)
    return head


def open_image(content: bytes) -> Image.Image:
    """Open an image with Pillow, if it is in a format of data sets.

    Args:
        content: Of the file.

    Returns:
        The image; pixels are decoded when they are asked for.

    Raises:
        OSError: If it is none, and what else is in
            :data:`DECODER_ERRORS`.
    """
    return Image.open(io.BytesIO(content), formats=_known_formats())


def pixels_of(
    content: bytes, head: ImageHead, *, verify: bool = False
) -> tuple[np.ndarray, str]:
    """Decode an image.

    Args:
        content: Of the file.
        head: From :func:`read_head`, without an error.
        verify: Hold the pixels of a PNG file against their checksum. Where
            kornia-rs refuses one, this is done in any case.

    Returns:
        Array of ``(H, W)`` or ``(H, W, channels)``, as NumPy makes it from
        Pillow's image: a palette's indices, 0 and 1 for two levels, red
        first; colours that are neither grey nor RGB become RGB. And the
        error; the array is empty then.
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
                ), ''
    if png is not None and not verify:
        error = png_data_error(content, png)
        if error:
            return np.empty(0, np.uint8), error
    return _by_pillow(content, head)


def try_rust(function: Callable, *args) -> tuple[np.ndarray | None, str]:
    """Call a function of kornia-rs that may refuse its input.

    Args:
        function: Of kornia-rs.
        *args: For it.

    Returns:
        Its result, None if it refused; and why.

    Raises:
        BaseException: What is neither a refusal of kornia-rs, which has no
            class of its own for that, nor a panic of Rust.
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
    orientation, exif_error = 1, ''
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
        error = ''
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


def _not_opened(content: bytes, error: BaseException) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return f'refused: {error}'
    if content.startswith(JPEG_SIGNATURE):
        found = jpeg_error(content)
        if found:
            return found
    start = content[:_SHOWN_BYTES].hex(' ')
    if type(error) is Image.UnidentifiedImageError:
        return f'not an image: the file begins with the bytes {start}'
    return (
        f'not a readable image: {_said(error)}; the file begins with the '
        f'bytes {start}'
    )


def _parsed_exif(data: bytes) -> Image.Exif:
    exif = Image.Exif()
    exif.load(data)
    return exif


def _orientation(read: Callable[[], Image.Exif]) -> tuple[int, str]:
    try:
        value = read().get(_ORIENTATION, 1)
    except DECODER_ERRORS as error:
        return 1, f'corrupt: the EXIF data cannot be read: {_said(error)}'
    return (value if value in _ORIENTATIONS else 1), ''


def _by_pillow(content: bytes, head: ImageHead) -> tuple[np.ndarray, str]:
    try:
        with open_image(content) as image:
            if image.mode in ('CMYK', 'YCbCr', 'HSV', 'LAB'):
                image = image.convert('RGB')
            pixels = np.asarray(image)
    except DECODER_ERRORS as error:
        return np.empty(0, np.uint8), (
            f'corrupt: the {head.kind} data cannot be decoded: {_said(error)}'
        )
    # TIFF files keep the byte order that they were written with.
    return pixels.astype(pixels.dtype.newbyteorder('='), copy=False), ''


def _said(error: BaseException) -> str:
    return f'{type(error).__name__}: {error}' if str(error) else repr(error)
