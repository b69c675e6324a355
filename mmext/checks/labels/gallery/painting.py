"""Paint label maps, and the pixels of them that are wrong.

Arrays are ``(H, W, 3)`` uint8, red first, unless said otherwise. What is
painted over a picture that was reduced stays visible: a single wrong pixel
among millions is at least one pixel of the picture, with a ring around it.
"""

import colorsys
import math
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image, ImageDraw

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


def fitted_size(height: int, width: int, max_side: int) -> tuple[int, int]:
    """Height and width reduced to ``max_side``, or small ones multiplied."""
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
    """Reduce to the first pixel of each cell, or enlarge to equal ones."""
    rows = _starts(pixels.shape[0], height)
    return pixels[rows][:, _starts(pixels.shape[1], width)]


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Reduce an image by means, or enlarge its pixels to squares."""
    enlarged = width > image.shape[1]
    way = Image.Resampling.NEAREST if enlarged else Image.Resampling.BOX
    return np.asarray(Image.fromarray(image).resize((width, height), way))


def pool_any(flags: np.ndarray, height: int, width: int) -> np.ndarray:
    """Reduce ``(H, W)`` bool so that no single flag is lost, or enlarge."""
    for axis, number in ((0, height), (1, width)):
        length = flags.shape[axis]
        starts = _starts(length, number)
        if number < length:
            flags = np.logical_or.reduceat(flags, starts, axis=axis)
        else:
            flags = flags.take(starts, axis=axis)
    return flags


def class_colours() -> np.ndarray:
    """Colours of labels, ``(256, 3)`` uint8; neighbours differ much."""
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
    """Darker and with less colour, so that marks stand out."""
    grey = image.mean(-1, keepdims=True)
    mixed = (0.5 * image + 0.5 * grey) * _DIMMED + _LIFT
    return np.rint(mixed).astype(np.uint8)


def paint_pixels(
    ground: np.ndarray, wrong: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """Mark wrong pixels, ``(H, W)`` bool; ``other`` is what else is wrong.

    If little is wrong, that is painted larger, and the first pixel, in reading
    order, has a ring around it.
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
    """Draw a ring that is seen on any ground, and leaves its centre free."""
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
    """Height and width of one of two pictures in one of ``max_side``.

    ``stacked``: the second is below the first, not to its right.
    """
    half = (max_side - _GAP) // 2
    short, long = (height, width) if stacked else (width, height)
    side = half if long <= short else min(max_side, half * long // short)
    return fitted_size(height, width, side)


def together(
    first: np.ndarray, second: np.ndarray, stacked: bool
) -> np.ndarray:
    """Put two pictures into one, each in its own size."""
    if stacked:
        turned = (box.transpose(1, 0, 2) for box in (first, second))
        return together(*turned, stacked=False).transpose(1, 0, 2)
    height = max(first.shape[0], second.shape[0])
    width = first.shape[1] + _GAP + second.shape[1]
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:] = OUTSIDE[0]
    picture[: first.shape[0], : first.shape[1]] = first
    picture[: second.shape[0], first.shape[1] + _GAP :] = second
    return picture


Box = tuple[float, float, float, float]

FINE = (0, 214, 255)
_SMALL_BOX = 10
# How much of what is outside of an image is shown, as a share of its sides.
_MARGIN = 0.25
_STRIPE = 6


def paint_boxes(
    image: np.ndarray,
    size: tuple[int, int],
    wrong: Sequence[Box],
    fine: Sequence[Box],
    max_side: int,
    other: Sequence[Box] = (),
) -> np.ndarray:
    """Draw boxes over an image: ``wrong`` thick, ``fine`` thin.

    Args:
        image: May be reduced.
        size: Width and height of the whole image, in the pixels of boxes.
        wrong: ``(x1, y1, x2, y2)``; may be outside, without area, not finite.
        fine: Of other objects.
        max_side: Of the picture.
        other: What the wrong boxes are to be compared with.

    Returns: The image, and up to a quarter of it on each side if wrong boxes
    reach there. What is too small to be seen gets a ring, what is further
    outside an arrow at the border.
    """
    wrong = [_whole(box, size) for box in wrong]
    left, top, right, bottom = _bounds(wrong, size)
    height, width = fitted_size(
        math.ceil(bottom - top), math.ceil(right - left), max_side
    )
    scale_x, scale_y = width / (right - left), height / (bottom - top)
    canvas = Image.fromarray(_hatched(height, width))
    x, y = round(-left * scale_x), round(-top * scale_y)
    inner = (
        min(max(1, round(size[0] * scale_x)), width - x),
        min(max(1, round(size[1] * scale_y)), height - y),
    )
    whole = resized(image, inner[1], inner[0])
    canvas.paste(Image.fromarray(whole), (x, y))
    draw = ImageDraw.Draw(canvas)

    def placed(box: Box) -> Box:
        x1, x2 = ((x - left) * scale_x for x in box[::2])
        y1, y2 = ((y - top) * scale_y for y in box[1::2])
        return x1, y1, x2, y2

    thin, double = ((1, FINE),), ((3, BEHIND), (2, OTHER))
    for boxes, lines in ((fine, thin), (other, double)):
        for box in boxes:
            if all(map(math.isfinite, box)):
                box = placed(_whole(box, size))
                _rectangle(draw, box, (width, height), lines)
    for box in wrong:
        _wrong_box(draw, placed(box), (width, height))
    return np.asarray(canvas)


def _whole(box: Box, size: tuple[int, int]) -> Box:
    """A box of finite numbers, the larger sides last."""
    ends = (0, 0, *size)
    x1, y1, x2, y2 = (
        float(end) if not math.isfinite(side) else side
        for side, end in zip(box, ends)
    )
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def _bounds(boxes: Sequence[Box], size: tuple[int, int]) -> Box:
    """What of the plane is shown."""
    low, high = [0.0, 0.0], [float(max(side, 1)) for side in size]
    for box in boxes:
        for axis in (0, 1):
            margin = _MARGIN * _side_of(size, axis)
            # A little more, so that the line itself can be seen.
            first, last = box[axis] - margin / 8, box[axis + 2] + margin / 8
            if box[axis] < 0:
                low[axis] = min(low[axis], max(first, -margin))
            if box[axis + 2] > size[axis]:
                most = _side_of(size, axis) + margin
                high[axis] = max(high[axis], min(last, most))
    return low[0], low[1], high[0], high[1]


def _side_of(size: tuple[int, int], axis: int) -> float:
    """Width or height, at least 1."""
    return float(max(size[axis], 1))


def _hatched(height: int, width: int) -> np.ndarray:
    """What is not there: dark stripes."""
    y, x = np.mgrid[:height, :width]
    stripes = (x + y) // _STRIPE % 2
    return np.array(OUTSIDE, np.uint8)[stripes]


def _rectangle(
    draw: ImageDraw.ImageDraw,
    box: Box,
    size: tuple[int, int],
    lines: Sequence[tuple[int, tuple]],
    reach: int = 9,
) -> None:
    """Lines of some widths along a box, so far beyond the picture."""
    # Coordinates of millions make Pillow slow.
    x1, x2 = (min(max(side, -reach), size[0] + reach) for side in box[::2])
    y1, y2 = (min(max(side, -reach), size[1] + reach) for side in box[1::2])
    for width, colour in lines:
        out = (width - 1) / 2
        draw.rectangle(
            (x1 - out, y1 - out, x2 + out, y2 + out),
            outline=colour,
            width=width,
        )


def _wrong_box(
    draw: ImageDraw.ImageDraw, box: Box, size: tuple[int, int]
) -> None:
    lines = (5, BEHIND), (3, WRONG)
    x1, y1, x2, y2 = box
    if x1 > size[0] or y1 > size[1] or x2 < 0 or y2 < 0:
        _arrow(draw, ((x1 + x2) / 2, (y1 + y2) / 2), size)
        return
    # A box that is larger than all that is shown has its lines at the border.
    _rectangle(draw, box, size, lines, reach=-1)
    if max(x2 - x1, y2 - y1) < _SMALL_BOX:
        paint_ring(draw, (x1 + x2) / 2, (y1 + y2) / 2)


def _arrow(
    draw: ImageDraw.ImageDraw,
    target: tuple[float, float],
    size: tuple[int, int],
) -> None:
    """A triangle at the border, its tip towards what is not shown."""
    tip = [max(0, min(max(at, 2), side - 3)) for at, side in zip(target, size)]
    x, y = target[0] - tip[0], target[1] - tip[1]
    length = math.hypot(x, y) or 1
    x, y = x / length, y / length
    for reach, colour in ((22, BEHIND), (18, WRONG)):
        base_x, base_y = tip[0] - reach * x, tip[1] - reach * y
        half = reach / 2
        draw.polygon(
            [
                tuple(tip),
                (base_x - half * y, base_y + half * x),
                (base_x + half * y, base_y - half * x),
            ],
            fill=colour,
        )
