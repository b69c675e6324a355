"""Draw boxes over an image, those that are wrong so that they are seen."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from ._painting import (
    BEHIND,
    OTHER,
    OUTSIDE,
    WRONG,
    fitted_size,
    paint_ring,
    resized,
)

__all__ = ['FINE', 'paint_boxes']

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
    """Draw boxes over an image.

    Args:
        image: May be reduced.
        size: Width and height of the whole image, in the pixels of boxes.
        wrong: ``(x1, y1, x2, y2)`` of what the finding is about: thick.
            They may be outside of the image, be without area, or not be
            finite.
        fine: Of other objects: thin.
        max_side: Of the picture.
        other: What the wrong boxes are to be compared with.

    Returns:
        The picture: the image, and up to a quarter of it on each side if
        wrong boxes reach there. What is too small to be seen gets a ring,
        what is further outside an arrow at the border.
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
        x1, x2 = ((each - left) * scale_x for each in box[::2])
        y1, y2 = ((each - top) * scale_y for each in box[1::2])
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
