"""Boxes and polygons that are cut at the border of their image."""

import math
from collections.abc import Sequence

_MIN_POINTS = 3


def clip_box(box: Sequence[float], width: float, height: float) -> list[float]:
    """The part of a box (left, top, width, height) that is in the image.

    Sides that are in the image stay as they are, and whole numbers stay whole.
    """
    left, wide = _clip_side(box[0], box[2], width)
    top, high = _clip_side(box[1], box[3], height)
    return [left, top, wide, high]


def _clip_side(begin: float, size: float, limit: float) -> tuple:
    if begin >= 0 and begin + size <= limit:
        return begin, size
    first = max(begin, 0)
    return first, min(begin + size, limit) - first


def clip_polygon(
    polygon: Sequence[float], width: float, height: float
) -> list[float]:
    """The part of ``x, y, x, y, ...`` that is in the image; may be empty.

    A polygon that the border divides stays one, whose parts edges along the
    border join.
    """
    points = list(zip(polygon[::2], polygon[1::2]))
    if all(0 <= x <= width and 0 <= y <= height for x, y in points):
        return list(polygon)
    for axis, sign, limit in (
        (0, -1, 0),
        (0, 1, width),
        (1, -1, 0),
        (1, 1, height),
    ):
        points = _cut(points, axis, sign, limit)
    if len(points) < _MIN_POINTS:
        return []
    return [number for point in points for number in point]


def _cut(
    points: list[tuple], axis: int, sign: int, limit: float
) -> list[tuple]:
    """What is on the inner side of a line (Sutherland and Hodgman)."""
    kept: list[tuple] = []
    for index, point in enumerate(points):
        before = points[index - 1]
        inside = sign * point[axis] <= sign * limit
        if inside != (sign * before[axis] <= sign * limit):
            kept.append(_crossing(before, point, axis, limit))
        if inside:
            kept.append(point)
    return kept


def _crossing(one: tuple, other: tuple, axis: int, limit: float) -> tuple:
    share = (limit - one[axis]) / (other[axis] - one[axis])
    across = one[1 - axis] + share * (other[1 - axis] - one[1 - axis])
    if isinstance(one[1 - axis], int):
        across = whole_if_equal(across)
    return (limit, across) if axis == 0 else (across, limit)


def whole_if_equal(number: float) -> float:
    """An int for a finite number without a fraction."""
    return int(number) if number == int(number) else number


def area_of(segmentation: object) -> float | None:
    """Area of polygons in pixels; None for what are not polygons."""
    if not isinstance(segmentation, list) or not segmentation:
        return None
    total = 0.0
    for polygon in segmentation:
        if (
            not isinstance(polygon, list)
            or len(polygon) < 2 * _MIN_POINTS
            or len(polygon) % 2
            or not all(type(number) in (int, float) for number in polygon)
            or not all(map(math.isfinite, polygon))
        ):
            return None
        xs, ys = polygon[::2], polygon[1::2]
        # From the first point on, as differences of large numbers lose
        # digits.
        xs = [x - xs[0] for x in xs]
        twice = sum(
            xs[i - 1] * (ys[i] - ys[0]) - xs[i] * (ys[i - 1] - ys[0])
            for i in range(len(xs))
        )
        total += abs(twice) / 2
    return total


def may_change_size(
    noted: Sequence[float], stored: Sequence[int], fits: bool
) -> bool:
    """Whether a noted size can be made that of the image file.

    Not if the image seems to have been scaled, as its objects would have to be
    scaled, too, nor if an object fits the noted size alone (``fits``).
    """
    (wide, high), (width, height) = noted, stored
    if wide <= 0 or high <= 0:
        return True
    off = abs(wide * height - high * width)
    return fits and off > max(wide, high, width, height)
