"""Read what rules need of an image: size, integrity, fingerprints."""

import hashlib

import cv2
import kornia_rs
import numpy as np

from ..facts import DEFAULT_MAX_PIXELS, ErrorKind, ImageFacts, ReadError
from .decode import (
    ImageHead,
    by_pillow,
    pixels_of,
    read_head,
    try_rust,
)
from .png import png_data_error

_HASH_SIZE = (9, 8)
# Means of integers are rounded: once in cells of this size, which are then
# averaged as real numbers.
_FINE_SIZE = (72, 64)
# Pillow decodes a JPEG file to a fraction that is at least this large.
_DRAFT = (128, 128)
_RED_GREEN_BLUE = (0.299, 0.587, 0.114)


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
        error = png_data_error(content, head.png) if head.png else None
        if error:
            return np.empty(0, np.uint8), error
        return by_pillow(content, head, grey_size=_DRAFT)
    return pixels_of(content, head)


def _jpeg_grey(
    content: bytes, head: ImageHead
) -> tuple[np.ndarray, ReadError | None]:
    """Decode by libjpeg-turbo, which kornia-rs lets stop at warnings."""
    grey, _ = try_rust(kornia_rs.io.decode_image_jpegturbo, content, 'mono')
    if grey is not None:
        return grey.reshape(head.height, head.width), None
    grey, error = by_pillow(content, head, grey_size=_DRAFT)
    return grey, error or ReadError(
        ErrorKind.SUSPECT,
        'suspect: libjpeg-turbo warns of damage in the JPEG data; what '
        'Pillow and OpenCV make of it may be wrong in part',
    )
