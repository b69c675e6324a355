"""Read arrays of NYUv2's layout: picture, label map, depth, normals."""

import hashlib
import io
import math
import tokenize

import numpy as np

from ..facts import (
    DEFAULT_MAX_PIXELS,
    ArrayFacts,
    BadValues,
    ErrorKind,
    ImageFacts,
    MaskFacts,
    ReadError,
)
from .image import difference_hash
from .mask import count_values, index_numbers

__all__ = [
    'read_npy_depth',
    'read_npy_image',
    'read_npy_mask',
    'read_npy_normal',
]

_MAGIC = b'\x93NUMPY'
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BAD_HEADER = (ValueError, SyntaxError, tokenize.TokenError)
_WIDEST = 1 << 31
_VOID, _IGNORED = -1, 255
# Rounding of a picture that was resized; float16 has 3 digits.
_RANGE_TOLERANCE = 1e-3
_UNIT_TOLERANCE = 0.02


class _Refused(Exception):
    """An array is not read; with the reason."""

    def __init__(self, kind: ErrorKind, text: str):
        super().__init__(text)
        self.error = ReadError(kind, f'{kind.value}: {text}')


def _array(content: bytes, channels: int, max_pixels: int) -> np.ndarray:
    """Numbers, ``(H, W)`` or ``(H, W, 3)``; its header is checked first."""
    if not content:
        raise _Refused(ErrorKind.EMPTY, 'the file has no bytes')
    if not content.startswith(_MAGIC):
        raise _Refused(ErrorKind.CORRUPT, 'this is no npy file')
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f'version {version} of npy is not known')
        shape, _, dtype = _HEADERS[version](file)
    except _BAD_HEADER as error:
        raise _Refused(
            ErrorKind.CORRUPT, f'the header cannot be read: {error}'
        ) from error
    if dtype.kind not in 'biuf':
        raise _Refused(ErrorKind.CORRUPT, f'{dtype} is no type of numbers')
    wanted = '(H, W, 3)' if channels > 1 else '(H, W) or (H, W, 1)'
    fits = len(shape) == 3 and shape[2] == channels
    fits = fits or (len(shape) == 2 and channels == 1)
    if not fits or min(shape) < 1:
        raise _Refused(
            ErrorKind.CORRUPT, f'the shape must be {wanted}, got {shape}'
        )
    if shape[0] * shape[1] > max_pixels:
        raise _Refused(
            ErrorKind.REFUSED,
            f'{shape[1]} x {shape[0]} pixels, more than {max_pixels:,}',
        )
    missing = math.prod(shape) * dtype.itemsize - len(content) + file.tell()
    if missing > 0:
        raise _Refused(ErrorKind.TRUNCATED, f'{missing:,} bytes are missing')
    array = np.load(io.BytesIO(content), allow_pickle=False)
    return array[..., 0] if array.ndim == 3 and channels == 1 else array


def _bad(kind: str, wrong: np.ndarray) -> tuple[BadValues, ...]:
    """Wrong pixels ``(H, W)``, if there are any."""
    count = int(np.count_nonzero(wrong))
    if not count:
        return ()
    return (BadValues(kind=kind, count=count, first=int(wrong.argmax())),)


def read_npy_image(
    content: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS
) -> ImageFacts:
    """Read a picture; values must be finite and in [0, 1]."""
    digest = hashlib.sha256(content).hexdigest()
    try:
        pixels = _array(content, 3, max_pixels)
    except _Refused as refused:
        return ImageFacts(digest=digest, error=refused.error)
    pixels = pixels.astype(np.float32)
    finite = np.isfinite(pixels).all(-1)
    low, high = pixels.min(-1), pixels.max(-1)
    outside = (low < -_RANGE_TOLERANCE) | (high > 1 + _RANGE_TOLERANCE)
    return ImageFacts(
        width=pixels.shape[1],
        height=pixels.shape[0],
        mode='RGB',
        digest=digest,
        fingerprint=difference_hash(np.nan_to_num(pixels)),
        bad=(
            *_bad('not finite', ~finite),
            *_bad('out of range', finite & outside),
        ),
    )


def read_npy_mask(
    content: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS
) -> MaskFacts:
    """Read a label map; -1 is given as 255, which it is loaded as."""
    try:
        pixels = _array(content, 1, max_pixels)
    except _Refused as refused:
        return MaskFacts(error=refused.error)
    size = {'width': pixels.shape[1], 'height': pixels.shape[0]}
    mode = 'F' if pixels.dtype.kind == 'f' else 'I'
    numbers, error = index_numbers(pixels, mode)
    if not error and max(abs(int(numbers.min())), int(numbers.max())) >= (
        _WIDEST
    ):
        error = ReadError(
            ErrorKind.CORRUPT, 'corrupt: numbers of over 32 bits are no class'
        )
    if error:
        return MaskFacts(**size, mode=mode, error=error)
    numbers = np.ascontiguousarray(numbers, np.int32)
    numbers = np.where(numbers == _VOID, np.int32(_IGNORED), numbers)
    values, first, truncated = count_values(numbers)
    return MaskFacts(
        **size, mode=mode, values=values, first=first, truncated=truncated
    )


def read_npy_depth(
    content: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS
) -> ArrayFacts:
    """Read depth; values must be finite and at least 0."""
    try:
        depth = _array(content, 1, max_pixels)
    except _Refused as refused:
        return ArrayFacts(error=refused.error)
    return ArrayFacts(
        width=depth.shape[1],
        height=depth.shape[0],
        bad=(
            *_bad('not finite', ~np.isfinite(depth)),
            *_bad('negative', np.isfinite(depth) & (depth < 0)),
        ),
    )


def read_npy_normal(
    content: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS
) -> ArrayFacts:
    """Read normals; each must be of length 1 or (0, 0, 0)."""
    try:
        normal = _array(content, 3, max_pixels)
    except _Refused as refused:
        return ArrayFacts(error=refused.error)
    normal = normal.astype(np.float32)
    finite = np.isfinite(normal).all(-1)
    with np.errstate(over='ignore', invalid='ignore'):
        length = np.linalg.norm(normal, axis=-1)
        unit = np.abs(length - 1) <= _UNIT_TOLERANCE
    return ArrayFacts(
        width=normal.shape[1],
        height=normal.shape[0],
        bad=(
            *_bad('not finite', ~finite),
            *_bad('not unit', finite & ~unit & normal.any(-1)),
        ),
    )
