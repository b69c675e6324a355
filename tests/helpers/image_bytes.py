"""Image files made in memory: kinds that data sets have, and damage."""

import io
import struct
import zlib
from collections.abc import Iterator

import cv2
import numpy as np
from PIL import Image


def saved(image: Image.Image, kind: str = 'PNG', **options) -> bytes:
    """Bytes of the file that Pillow writes."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(pixels: np.ndarray, **options) -> bytes:
    """PNG file of an array."""
    return saved(Image.fromarray(pixels), **options)


def street(
    seed: int = 0, height: int = 96, width: int = 128, count: int = 40
) -> np.ndarray:
    """A label map of 19 classes and 255, of areas as in street scenes."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((height, width), np.uint8)
    pixels[: height // 3] = 10
    for _ in range(count):
        center = rng.integers(0, (width, height))
        corners = center + rng.integers(-height // 8, height // 8, (8, 2))
        cv2.fillPoly(pixels, [corners.astype(np.int32)], int(rng.integers(19)))
    pixels[-height // 20 :] = 255
    return pixels


def photo(
    seed: int = 0, height: int = 96, width: int = 128, blur: float = 6
) -> np.ndarray:
    """A smooth RGB image."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
    smooth = cv2.GaussianBlur(noise, (0, 0), blur)
    return cv2.normalize(smooth, None, 0, 255, cv2.NORM_MINMAX)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file, with the right CRC."""
    crc = zlib.crc32(kind + data)
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', crc)


def bare_png(
    width: int,
    height: int,
    rows: bytes = b'',
    depth: int = 8,
    colour: int = 0,
    interlace: int = 0,
    extra: bytes = b'',
) -> bytes:
    """A PNG file of the header and the filtered rows that are asked for."""
    header = struct.pack(
        '>IIBBBBB', width, height, depth, colour, 0, 0, interlace
    )
    return (
        b'\x89PNG\r\n\x1a\n'
        + chunk(b'IHDR', header)
        + extra
        + chunk(b'IDAT', zlib.compress(rows))
        + chunk(b'IEND', b'')
    )


def interlaced_png(pixels: np.ndarray) -> bytes:
    """PNG file of bytes, in the seven passes of Adam7."""
    passes = [
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ]
    rows = b''.join(
        b'\x00' + row.tobytes()
        for y, x, dy, dx in passes
        for row in pixels[y::dy, x::dx]
        if row.size
    )
    height, width = pixels.shape
    return bare_png(width, height, rows, interlace=1)


def kinds_of_images(height: int = 13, width: int = 21) -> dict[str, bytes]:
    """Name -> file, for each kind of PNG that Pillow or OpenCV writes."""
    rng = np.random.default_rng(0)
    files = {}
    for bits in (1, 2, 4, 8):
        image = Image.fromarray(
            rng.integers(0, 1 << bits, (height, width)).astype(np.uint8)
        )
        image.putpalette([7, 8, 9] * 256)
        files[f'palette_{bits}'] = saved(image, bits=bits)
        files[f'palette_{bits}_trns'] = saved(image, bits=bits, transparency=1)
        # As with a grey of few bits, which Pillow does not write.
        rows = rng.integers(0, 256, (height, 1 + -(-width * bits // 8)))
        rows[:, 0] = 0
        files[f'grey_{bits}'] = bare_png(
            width, height, rows.astype(np.uint8).tobytes(), depth=bits
        )
    bytes_ = rng.integers(0, 256, (height, width, 4)).astype(np.uint8)
    words = rng.integers(0, 1 << 16, (height, width, 4)).astype(np.uint16)
    files['grey_8_trns'] = png(bytes_[..., 0], transparency=3)
    files['grey_16'] = png(words[..., 0].copy())
    files['rgb'] = png(bytes_[..., :3].copy())
    files['rgb_trns'] = png(bytes_[..., :3].copy(), transparency=(1, 2, 3))
    files['rgba'] = png(bytes_)
    files['grey_alpha'] = png(bytes_[..., :2].copy())
    files['rgb_16'] = cv2.imencode('.png', words[..., :3])[1].tobytes()
    files['rgba_16'] = cv2.imencode('.png', words)[1].tobytes()
    files['interlaced'] = interlaced_png(bytes_[..., 0])
    files['bilevel'] = saved(Image.fromarray(bytes_[..., 0] > 127))
    frames = [Image.fromarray(bytes_[..., i].copy()) for i in range(2)]
    files['animated'] = saved(
        frames[0], save_all=True, append_images=frames[1:]
    )
    return files


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """The file cut off, or some of its bits flipped."""
    if rng.random() < 0.5:
        return content[: int(rng.integers(len(content)))]
    changed = bytearray(content)
    for position in rng.integers(0, len(content), int(rng.integers(1, 6))):
        changed[position] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def fuzzed(
    files: list[bytes], count: int, rng: np.random.Generator
) -> Iterator[bytes]:
    """Damaged files, and one in five of random bytes."""
    for number in range(count):
        if number % 5:
            yield damaged(files[int(rng.integers(len(files)))], rng)
        else:
            yield rng.bytes(int(rng.integers(0, 300)))
