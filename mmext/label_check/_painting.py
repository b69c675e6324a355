"""Paint label maps, and the pixels of them that are wrong.

Arrays are ``(H, W, 3)`` uint8, red first, unless said otherwise. What is
painted over a picture that was reduced stays visible: a single wrong pixel
among millions is at least one pixel of the picture, with a ring around it.
"""

import base64
import colorsys
import io
import math

import cv2
import numpy as np
from PIL import Image, ImageDraw, features

__all__ = [
    'BEHIND',
    'OTHER',
    'OUTSIDE',
    'WRONG',
    'class_colours',
    'data_uri',
    'dimmed',
    'fitted_size',
    'half_size',
    'nearest',
    'paint_pixels',
    'paint_ring',
    'pool_any',
    'resized',
    'together',
]

# What the finding is about, and what else is wrong.
WRONG = (255, 0, 144)
OTHER = (255, 196, 0)
# Below marks, so that they are seen on any ground.
BEHIND = (20, 20, 24)
# Stripes of what no image has.
OUTSIDE = (58, 60, 68), (70, 72, 82)

_DIMMED = 0.62
_LIFT = 26
_OPACITY = 0.7
# Below this share of the picture, what is wrong gets a ring.
_FEW = 0.002
_RING = 11
# Small pictures are enlarged up to this side, each pixel to a square.
_SMALL = 240
_MAX_ENLARGED = 16
# Between pictures that are beside each other.
_GAP = 8
_OPTIONS = {
    'PNG': {'compress_level': 6},
    'WEBP': {'quality': 82, 'method': 2, 'use_sharp_yuv': True},
    'JPEG': {'quality': 85},
}


def fitted_size(height: int, width: int, max_side: int) -> tuple[int, int]:
    """Size of a picture of something that has another size.

    Args:
        height: In pixels, at least 1.
        width: The same.
        max_side: Of the picture.

    Returns:
        Height and width: reduced to ``max_side``, or a multiple of a small
        one.

    Examples:
        >>> fitted_size(1024, 2048, 480)
        (240, 480)
        >>> fitted_size(24, 32, 480)
        (168, 224)
    """
    longest = max(height, width)
    if longest > max_side:
        return tuple(
            max(1, round(side * max_side / longest))
            for side in (height, width)
        )
    times = min(min(_SMALL, max_side) // longest, _MAX_ENLARGED) or 1
    return height * times, width * times


def _starts(length: int, number: int) -> np.ndarray:
    """Where each of ``number`` cells begins."""
    return np.arange(number) * length // number


def nearest(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Reduce or enlarge without making up values.

    Args:
        pixels: ``(H, W)`` or ``(H, W, channels)``, any dtype.
        height: Of the result.
        width: Of the result.

    Returns:
        The first pixel of each cell.

    Examples:
        >>> nearest(np.arange(6).reshape(2, 3), 1, 6).tolist()
        [[0, 0, 1, 1, 2, 2]]
    """
    rows = _starts(pixels.shape[0], height)
    return pixels[rows][:, _starts(pixels.shape[1], width)]


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Reduce an image by means, or enlarge its pixels to squares.

    Args:
        image: To resize.
        height: Of the result.
        width: Of the result.

    Returns:
        The picture.
    """
    enlarged = width > image.shape[1]
    way = Image.Resampling.NEAREST if enlarged else Image.Resampling.BOX
    return np.asarray(Image.fromarray(image).resize((width, height), way))


def pool_any(flags: np.ndarray, height: int, width: int) -> np.ndarray:
    """Reduce so that a single flag is not lost, or enlarge.

    Args:
        flags: ``(H, W)`` bool.
        height: Of the result.
        width: Of the result.

    Returns:
        For each cell, whether one of its pixels is set.

    Examples:
        >>> pool_any(np.eye(4, dtype=bool)[:3], 1, 2).tolist()
        [[True, True]]
    """
    for axis, number in ((0, height), (1, width)):
        length = flags.shape[axis]
        starts = _starts(length, number)
        if number < length:
            flags = np.logical_or.reduceat(flags, starts, axis=axis)
        else:
            flags = flags.take(starts, axis=axis)
    return flags


def class_colours() -> np.ndarray:
    """Colours of labels, ``(256, 3)`` uint8; neighbours differ much.

    Examples:
        >>> len({tuple(each) for each in class_colours().tolist()})
        256
    """
    golden = (math.sqrt(5) - 1) / 2
    colours = [
        colorsys.hsv_to_rgb(
            (0.58 + label * golden) % 1,
            0.35 + 0.03 * (label % 11),
            0.55 + 0.06 * (label % 7),
        )
        for label in range(256)
    ]
    return np.rint(np.array(colours) * 255).astype(np.uint8)


def dimmed(image: np.ndarray) -> np.ndarray:
    """Darker and with less colour, so that marks stand out.

    Examples:
        >>> dimmed(np.full((1, 1, 3), 200, np.uint8)).tolist()
        [[[150, 150, 150]]]
    """
    grey = image.mean(-1, keepdims=True)
    mixed = (0.5 * image + 0.5 * grey) * _DIMMED + _LIFT
    return np.rint(mixed).astype(np.uint8)


def paint_pixels(
    ground: np.ndarray, wrong: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """Mark wrong pixels.

    Args:
        ground: What is below.
        wrong: ``(H, W)`` bool, of the same size: what the finding is about.
        other: What else is wrong.

    Returns:
        The picture. If little is wrong, that is painted larger, and the
        first pixel, in reading order, has a ring around it.
    """
    picture = ground.astype(np.float32)
    few = bool(wrong.any()) and wrong.mean() < _FEW
    thick = wrong
    if few:
        square = np.ones((5, 5), np.uint8)
        thick = cv2.dilate(wrong.astype(np.uint8), square) > 0
    for flags, colour in ((other & ~wrong, OTHER), (thick, WRONG)):
        # What is large shows the image below, what is small is opaque.
        opacity = 1.0 if flags.mean() < 10 * _FEW else _OPACITY
        picture[flags] *= 1 - opacity
        picture[flags] += opacity * np.array(colour, np.float32)
    picture = np.rint(picture).astype(np.uint8)
    if not few:
        return picture
    y, x = divmod(int(wrong.argmax()), wrong.shape[1])
    image = Image.fromarray(picture)
    paint_ring(ImageDraw.Draw(image), x, y)
    return np.asarray(image)


def paint_ring(draw: ImageDraw.ImageDraw, x: float, y: float) -> None:
    """Draw a ring that is seen on any ground, and leaves its centre free.

    Args:
        draw: Of the picture.
        x: Of the centre, in pixels of the picture.
        y: The same.
    """
    for width, colour in ((5, BEHIND), (2, (255, 255, 255))):
        radius = _RING + width / 2
        draw.ellipse(
            (x - radius, y - radius, x + radius, y + radius),
            outline=colour,
            width=width,
        )


def half_size(
    height: int, width: int, max_side: int, stacked: bool
) -> tuple[int, int]:
    """Size of one of two pictures in one.

    Args:
        height: Of what is to be shown, in pixels, at least 1.
        width: The same.
        max_side: Of both together.
        stacked: The second is below the first, not to its right.

    Returns:
        Height and width.

    Examples:
        >>> half_size(1000, 2000, 408, stacked=True)
        (200, 400)
        >>> half_size(1000, 2000, 408, stacked=False)
        (100, 200)
    """
    half = (max_side - _GAP) // 2
    short, long = (height, width) if stacked else (width, height)
    side = half if long <= short else min(max_side, half * long // short)
    return fitted_size(height, width, side)


def together(
    first: np.ndarray, second: np.ndarray, stacked: bool
) -> np.ndarray:
    """Put two pictures into one, each in its own size.

    Args:
        first: Left, or above.
        second: Right, or below.
        stacked: As in :func:`half_size`.

    Returns:
        The picture.

    Examples:
        >>> one = np.zeros((4, 6, 3), np.uint8)
        >>> together(one, one[:2], stacked=False).shape
        (4, 20, 3)
    """
    if stacked:
        turned = (each.transpose(1, 0, 2) for each in (first, second))
        return together(*turned, stacked=False).transpose(1, 0, 2)
    height = max(first.shape[0], second.shape[0])
    width = first.shape[1] + _GAP + second.shape[1]
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:] = OUTSIDE[0]
    picture[: first.shape[0], : first.shape[1]] = first
    picture[: second.shape[0], first.shape[1] + _GAP :] = second
    return picture


def data_uri(picture: np.ndarray) -> str:
    """The picture as a URI that holds all of it.

    Args:
        picture: To encode.

    Returns:
        PNG, which keeps all values, or WebP, whichever is smaller; JPEG
        where Pillow was built without WebP.
    """
    image = Image.fromarray(np.ascontiguousarray(picture))
    lossy = 'WEBP' if features.check('webp') else 'JPEG'
    files = {}
    for kind in ('PNG', lossy):
        file = io.BytesIO()
        image.save(file, kind, **_OPTIONS[kind])
        files[kind] = file.getvalue()
    kind = min(files, key=lambda each: len(files[each]))
    content = base64.b64encode(files[kind]).decode()
    return f'data:image/{kind.lower()};base64,{content}'
