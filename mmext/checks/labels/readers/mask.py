"""Read what is stored in a label map: values, counts, first pixels."""

import numpy as np

from ..facts import DEFAULT_MAX_PIXELS, ErrorKind, MaskFacts, ReadError
from .decode import pixels_of, read_head

MAX_VALUES = 4096

# WebP has a chunk VP8L where it keeps values; metadata may be before it.
_LOSSY = ('JPEG', 'MPO', 'WEBP')
_WEBP_HEAD = 1 << 12


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


def pack_colours(pixels: np.ndarray) -> np.ndarray:
    """Colours, ``(H, W, >= 3)`` uint8, red first, as int32 ``0xRRGGBB``."""
    packed = pixels[..., 0].astype(np.int32)
    for channel in (1, 2):
        packed <<= 8
        packed |= pixels[..., channel]
    return packed


def read_mask_facts(
    content: bytes,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    verify: bool = False,
) -> MaskFacts:
    """Read a label map; bytes that are no image end in ``error``.

    Values are those that Pillow gives, as MMSegmentation loads label maps by
    default: the indices of a palette, 0 and 1 for one bit, and grey of two or
    four bits spread over 0 to 255. The alpha of LA, PA and RGBA is left out.

    ``verify`` compares the pixels of a PNG file with their checksum, which
    finds what memory had damaged before the file was written, and takes 2 ms
    more than the 3 ms for 2048x1024 pixels. What befell the file later, and
    rows that are missing, are found without.
    """
    head = read_head(content, max_pixels)
    size = {'width': head.width, 'height': head.height, 'mode': head.mode}
    if head.error:
        return MaskFacts(**size, error=head.error)
    pixels, error = pixels_of(content, head, verify=verify)
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
    return pack_colours(pixels), None
