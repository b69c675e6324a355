"""Read what rules need of images, label maps and arrays.

Of images: size, integrity, fingerprint; of label maps: values, how many
pixels have them, and the first of these; of depth and normals: wrong values.
"""

import hashlib
import io
import math
import tokenize

import cv2
import kornia_rs
import numpy as np

from ..facts import (
    DEFAULT_MAX_PIXELS,
    ErrorKind,
    ImageFacts,
    MaskFacts,
    ReadError,
)
from .decode import (
    ImageHead,
    by_pillow,
    pixels_of,
    png_data_error,
    read_head,
    try_rust,
)

_HASH_SIZE = (9, 8)
# Means of integers are rounded: once in cells of this size, which are then
# averaged as real numbers.
_FINE_SIZE = (72, 64)
# Pillow decodes a JPEG file to a fraction that is at least this large.
_DRAFT = (128, 128)
_RED_GREEN_BLUE = (0.299, 0.587, 0.114)
MAX_VALUES = 4096

# WebP has a chunk VP8L where it keeps values; metadata may be before it.
_LOSSY = ('JPEG', 'MPO', 'WEBP')
_WEBP_HEAD = 1 << 12


def read_image_facts(content: bytes) -> ImageFacts:
    """Read an image; ``error`` says why it cannot be read.

    A file that was cut off is found by the chunks of PNG files, their
    checksums included, and the markers of JPEG files; damage inside by
    decoding. The error is a suspicion if Pillow reads a JPEG file without
    complaint that libjpeg-turbo warns of.
    """
    head = read_head(content, DEFAULT_MAX_PIXELS)
    error, fingerprint = head.error, -1
    if not error:
        grey, error = _visible(content, head)
        if grey.size:
            fingerprint = difference_hash(grey)
    return ImageFacts(
        width=head.width,
        height=head.height,
        mode=head.mode,
        bits=max(head.depth, 8),
        orientation=head.orientation,
        digest=hashlib.sha256(content).hexdigest(),
        fingerprint=fingerprint,
        error=error or head.exif_error,
    )


def difference_hash(pixels: np.ndarray) -> int:
    """Tell in 64 bits where an image gets brighter to the right.

    ``(H, W)`` or ``(H, W, channels)``; of one or two channels the first
    counts, of more the first three, as red, green and blue. The image is
    averaged into 8 rows of 9 cells; there is one bit for each pair of
    neighbours, the first pair highest. Images that differ by their size, by
    compression or by brightness have hashes that differ in few bits; other
    images in 32 on average. An image without any contrast has 0.
    """
    if pixels.ndim == 3 and pixels.shape[-1] == 2:
        pixels = np.ascontiguousarray(pixels[..., 0])
    if pixels.dtype in (np.uint8, np.uint16) and (
        min(pixels.shape[:2]) >= 2 * max(_FINE_SIZE)
    ):
        pixels = cv2.resize(pixels, _FINE_SIZE, interpolation=cv2.INTER_AREA)
    cells = cv2.resize(
        pixels.astype(np.float32), _HASH_SIZE, interpolation=cv2.INTER_AREA
    )
    if cells.ndim == 3:
        cells = cells[..., :3] @ np.array(_RED_GREEN_BLUE)
    bits = cells[:, 1:] > cells[:, :-1]
    return int.from_bytes(np.packbits(bits).tobytes(), 'big')


def _visible(
    content: bytes, head: ImageHead
) -> tuple[np.ndarray, ReadError | None]:
    """Pixels as seen, not a palette's indices; may be a reduced image."""
    if head.kind in ('JPEG', 'MPO') and head.mode in ('L', 'RGB'):
        return _jpeg_grey(content, head)
    if head.mode in ('P', 'PA'):
        error = png_data_error(content, head) if head.kind == 'PNG' else None
        if error:
            return np.empty(0, np.uint8), error
        return by_pillow(content, head, grey_size=_DRAFT)
    return pixels_of(content, head)


def _jpeg_grey(
    content: bytes, head: ImageHead
) -> tuple[np.ndarray, ReadError | None]:
    """Decode by libjpeg-turbo, which kornia-rs lets stop at warnings."""
    grey = try_rust(kornia_rs.io.decode_image_jpegturbo, content, 'mono')
    if grey is not None:
        return grey.reshape(head.height, head.width), None
    grey, error = by_pillow(content, head, grey_size=_DRAFT)
    return grey, error or ReadError(
        ErrorKind.SUSPECT,
        'suspect: libjpeg-turbo warns of damage in the JPEG data; what '
        'Pillow and OpenCV make of it may be wrong in part',
    )


def count_values(
    pixels: np.ndarray,
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...], bool]:
    """Count each value, and say where it occurs first.

    Takes integers of at most 32 bits, or bool; at least one pixel. Gives
    pairs (value, number of pixels), the smallest value first; for each the
    index of its first pixel in reading order; and whether there are more than
    :data:`MAX_VALUES` values. If so, the most frequent are listed, of equally
    frequent ones the smaller.

    1 ms for 2048x1024 pixels of a street scene, 8 bits each: runs of a value
    are counted, not pixels. 150 ms for noise.
    """
    flat = pixels.reshape(-1)
    if flat.dtype == np.bool_:
        # True is a byte of 255 where Pillow made it.
        flat = (flat.view(np.uint8) != 0).view(np.uint8)
    starts = np.append(0, np.flatnonzero(flat[1:] != flat[:-1]) + 1)
    values, first, runs = np.unique(
        flat[starts], return_index=True, return_inverse=True
    )
    first = starts[first]
    # Sums of float64 are exact below 2**53.
    lengths = np.diff(starts, append=flat.size)
    counts = np.bincount(runs.reshape(-1), lengths).astype(np.int64)
    truncated = len(values) > MAX_VALUES
    if truncated:
        kept = np.argsort(-counts, kind='stable')[:MAX_VALUES]
        kept.sort()
        values, counts, first = values[kept], counts[kept], first[kept]
    pairs = tuple(zip(values.tolist(), counts.tolist()))
    return pairs, tuple(first.tolist()), truncated


def read_mask_facts(content: bytes) -> MaskFacts:
    """Read a label map; bytes that are no image end in ``error``.

    Values are those that Pillow gives, as MMSegmentation loads label maps by
    default: the indices of a palette, 0 and 1 for one bit, and grey of two or
    four bits spread over 0 to 255. The alpha of LA, PA and RGBA is left out.
    """
    head = read_head(content, DEFAULT_MAX_PIXELS)
    size = {'width': head.width, 'height': head.height, 'mode': head.mode}
    if head.error:
        return MaskFacts(**size, error=head.error)
    pixels, error = pixels_of(content, head)
    if not error:
        numbers, error = index_numbers(pixels, head.mode)
    if error:
        return MaskFacts(**size, error=error)
    values, first, truncated = count_values(numbers)
    exact = head.kind not in _LOSSY or b'VP8L' in content[:_WEBP_HEAD]
    return MaskFacts(
        **size,
        values=values,
        first=first,
        truncated=truncated,
        lossy='' if exact else head.kind,
    )


def index_numbers(
    pixels: np.ndarray, mode: str
) -> tuple[np.ndarray, ReadError | None]:
    """One number for each pixel, or why there are none.

    Of floating-point pixels, whole numbers; of colours, ``0xRRGGBB``.
    """
    if pixels.dtype.kind == 'f':
        # Files of another program may hold whole numbers all the same.
        whole = np.isfinite(pixels) & (np.abs(pixels) < 1 << 24)
        whole &= pixels == np.rint(np.where(whole, pixels, 0))
        if not whole.all():
            y, x = divmod(int(whole.argmin()), pixels.shape[1])
            return pixels, ReadError(
                ErrorKind.CORRUPT,
                f'floating-point pixels (mode {mode}) are no class indices: '
                f'{pixels[y, x]} at y={y}, x={x}',
            )
        return pixels.astype(np.int32), None
    if pixels.ndim == 2:
        return pixels, None
    if pixels.shape[-1] < 3:
        return pixels[..., 0], None
    packed = pixels[..., 0].astype(np.int32)
    for channel in (1, 2):
        packed <<= 8
        packed |= pixels[..., channel]
    return packed, None


_MAGIC = b'\x93NUMPY'
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BAD_HEADER = (ValueError, TypeError, SyntaxError, tokenize.TokenError)
_LARGEST_LABEL = 1 << 24
_VOID, _IGNORED = -1, 255
# Rounding of a picture that was resized; float16 has 3 digits.
_RANGE_TOLERANCE = 1e-3
_UNIT_TOLERANCE = 0.02


class _RefusedError(Exception):
    """An array is not read; with the reason."""

    def __init__(self, text: str, kind: ErrorKind = ErrorKind.CORRUPT):
        super().__init__(text)
        self.error = ReadError(kind, f'{kind.value}: {text}')


def _array(content: bytes, channels: int) -> np.ndarray:
    """Numbers, ``(H, W)`` or ``(H, W, 3)``; its header is checked first."""
    if not content:
        raise _RefusedError('the file has no bytes', ErrorKind.EMPTY)
    if not content.startswith(_MAGIC):
        raise _RefusedError('this is no npy file')
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f'version {version} of npy is not known')
        shape, _, dtype = _HEADERS[version](file)
    except _BAD_HEADER as error:
        raise _RefusedError(f'the header cannot be read: {error}') from error
    wanted = '(H, W, 3)' if channels > 1 else '(H, W) or (H, W, 1)'
    fits = shape[2:] == (channels,) or (len(shape) == 2 and channels == 1)
    if not fits or min(shape) < 1 or dtype.kind not in 'biuf':
        raise _RefusedError(
            f'it must be {wanted} numbers, got {shape} of {dtype}'
        )
    if shape[0] * shape[1] > DEFAULT_MAX_PIXELS:
        raise _RefusedError(
            f'{shape[1]} x {shape[0]} pixels, more than '
            f'{DEFAULT_MAX_PIXELS:,}',
            ErrorKind.REFUSED,
        )
    missing = math.prod(shape) * dtype.itemsize - len(content) + file.tell()
    if missing > 0:
        raise _RefusedError(
            f'{missing:,} bytes are missing', ErrorKind.TRUNCATED
        )
    array = np.load(io.BytesIO(content), allow_pickle=False)
    return array[..., 0] if array.ndim == 3 and channels == 1 else array


def _size(array: np.ndarray) -> dict[str, int]:
    return {'width': array.shape[1], 'height': array.shape[0]}


def _bad(**wrong: np.ndarray) -> tuple[tuple[str, int, int], ...]:
    """Kind, number and first of wrong pixels, of kinds that there are."""
    return tuple(
        (kind.replace('_', ' '), int(pixels.sum()), int(pixels.argmax()))
        for kind, pixels in wrong.items()
        if pixels.any()
    )


@np.errstate(all='ignore')
def read_npy_image(content: bytes) -> ImageFacts:
    """Read a picture; values must be finite and in [0, 1]."""
    digest = hashlib.sha256(content).hexdigest()
    try:
        pixels = _array(content, 3).astype(np.float32)
    except _RefusedError as refused:
        return ImageFacts(digest=digest, error=refused.error)
    finite = np.isfinite(pixels).all(-1)
    outside = np.abs(pixels - 0.5).max(-1) > 0.5 + _RANGE_TOLERANCE
    return ImageFacts(
        **_size(pixels),
        mode='RGB',
        digest=digest,
        fingerprint=difference_hash(np.nan_to_num(pixels)),
        bad=_bad(not_finite=~finite, out_of_range=finite & outside),
    )


def read_npy_mask(content: bytes) -> MaskFacts:
    """Read a label map; -1 is given as 255, which it is loaded as."""
    try:
        pixels = _array(content, 1)
    except _RefusedError as refused:
        return MaskFacts(error=refused.error)
    mode = 'F' if pixels.dtype.kind == 'f' else 'I'
    if pixels.dtype == np.float16:
        pixels = pixels.astype(np.float32)
    numbers, error = index_numbers(pixels, mode)
    if not error and not (abs(numbers.astype(float)) < _LARGEST_LABEL).all():
        text = f'corrupt: labels must be below {_LARGEST_LABEL}'
        error = ReadError(ErrorKind.CORRUPT, text)
    if error:
        return MaskFacts(**_size(pixels), mode=mode, error=error)
    numbers = np.ascontiguousarray(numbers, np.int32)
    numbers = np.where(numbers == _VOID, np.int32(_IGNORED), numbers)
    values, first, truncated = count_values(numbers)
    return MaskFacts(
        **_size(pixels),
        mode=mode,
        values=values,
        first=first,
        truncated=truncated,
    )


@np.errstate(all='ignore')
def read_npy_map(content: bytes, kind: str) -> ImageFacts:
    """Read ``'depth'``, at least 0, or ``'normal'``: unit vectors or zeros."""
    try:
        array = _array(content, 1 if kind == 'depth' else 3)
    except _RefusedError as refused:
        return ImageFacts(error=refused.error)
    array = array.astype(np.float32)
    if kind == 'depth':
        finite = np.isfinite(array)
        bad = _bad(not_finite=~finite, negative=finite & (array < 0))
    else:
        finite = np.isfinite(array).all(-1)
        length = np.linalg.norm(np.where(finite[..., None], array, 0), axis=-1)
        short = np.abs(length - 1) > _UNIT_TOLERANCE
        bad = _bad(not_finite=~finite, not_unit=short & (length > 0))
    return ImageFacts(**_size(array), bad=bad)
