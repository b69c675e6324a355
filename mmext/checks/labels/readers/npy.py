"""Read arrays of NYUv2's layout: picture, label map, depth, normals."""

import hashlib
import io
import math
import tokenize

import numpy as np

from ..facts import (
    DEFAULT_MAX_PIXELS,
    ErrorKind,
    ImageFacts,
    MaskFacts,
    ReadError,
)
from .image import count_values, difference_hash, index_numbers

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

    def __init__(self, kind: ErrorKind, text: str):
        super().__init__(text)
        self.error = ReadError(kind, f'{kind.value}: {text}')


def _array(content: bytes, channels: int) -> np.ndarray:
    """Numbers, ``(H, W)`` or ``(H, W, 3)``; its header is checked first."""
    if not content:
        raise _RefusedError(ErrorKind.EMPTY, 'the file has no bytes')
    if not content.startswith(_MAGIC):
        raise _RefusedError(ErrorKind.CORRUPT, 'this is no npy file')
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f'version {version} of npy is not known')
        shape, _, dtype = _HEADERS[version](file)
    except _BAD_HEADER as error:
        raise _RefusedError(
            ErrorKind.CORRUPT, f'the header cannot be read: {error}'
        ) from error
    wanted = '(H, W, 3)' if channels > 1 else '(H, W) or (H, W, 1)'
    fits = shape[2:] == (channels,) or (len(shape) == 2 and channels == 1)
    if not fits or min(shape) < 1 or dtype.kind not in 'biuf':
        raise _RefusedError(
            ErrorKind.CORRUPT,
            f'it must be {wanted} numbers, got {shape} of {dtype}',
        )
    if shape[0] * shape[1] > DEFAULT_MAX_PIXELS:
        raise _RefusedError(
            ErrorKind.REFUSED,
            f'{shape[1]} x {shape[0]} pixels, more than '
            f'{DEFAULT_MAX_PIXELS:,}',
        )
    missing = math.prod(shape) * dtype.itemsize - len(content) + file.tell()
    if missing > 0:
        raise _RefusedError(
            ErrorKind.TRUNCATED, f'{missing:,} bytes are missing'
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
