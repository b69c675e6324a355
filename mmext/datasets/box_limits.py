"""What a box must be: each limit and its test, once for the whole project.

The pipeline transform looks at the boxes of a sample, the rules of the label
check at one box, its prefilter at all boxes of a file; a box is wrong for all
three or for none. So each function here takes the four sides ``x1, y1, x2,
y2``, in pixels, as four numbers or as four arrays of one shape, and answers
with a bool or an array of them. It is written with comparisons alone: they
are False for NaN, and infinity makes no warning.

The module stands in this package, below the label check, as the transform may
not import the label check; it does not need torch.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# A box may end at the last pixel's index or behind it, by convention.
BORDER_TOLERANCE = 1.0
# The loaders of MMDetection drop what is narrower or lower than that.
MIN_SIZE = 1.0
# Boxes of one object that was annotated twice.
NEAR_TOLERANCE = 2.0
NEAR_OVERLAP = 0.5
# Polygons have fractions where bitmaps have whole pixels.
MASK_TOLERANCE = 2.0


def sides_of_coco(boxes: np.ndarray) -> tuple[np.ndarray, ...]:
    """x1, y1, x2, y2 of boxes ``(N, 4)``: left, top, width, height."""
    left, top, width, height = boxes.T
    with np.errstate(invalid='ignore', over='ignore'):
        return left, top, left + width, top + height


def is_finite(sides: Sequence) -> Any:
    """Whether no side is NaN or infinite; otherwise DET001."""
    x1, y1, x2, y2 = map(abs, sides)
    end = math.inf
    return (x1 < end) & (y1 < end) & (x2 < end) & (y2 < end)


def has_area(sides: Sequence) -> Any:
    """Whether a box is finite, and its width and height are over 0."""
    x1, y1, x2, y2 = sides
    return is_finite(sides) & (x1 < x2) & (y1 < y2)


def lacks_area(sides: Sequence) -> Any:
    """Whether width or height of a finite box are 0 or negative: DET002."""
    x1, y1, x2, y2 = sides
    return is_finite(sides) & ((x2 <= x1) | (y2 <= y1))


def is_tiny(sides: Sequence, min_size: float = MIN_SIZE) -> Any:
    """Whether a box with an area is narrower or lower than that: DET003."""
    x1, y1, x2, y2 = sides
    # Not x2 - x1: x2 is rounded already where it is left + width.
    small = (x2 < x1 + min_size) | (y2 < y1 + min_size)
    return has_area(sides) & small


def is_outside(sides: Sequence, width: Any, height: Any) -> Any:
    """Whether a box with an area shares no pixel with its image: DET004."""
    x1, y1, x2, y2 = sides
    away = (x1 >= width) | (y1 >= height) | (x2 <= 0) | (y2 <= 0)
    return has_area(sides) & away


def is_beyond(
    sides: Sequence,
    width: Any,
    height: Any,
    tolerance: float = BORDER_TOLERANCE,
) -> Any:
    """Whether a box lies partly outside, by more than that: DET005.

    Examples:
        >>> is_beyond((5, 5, 21, 9), 20, 10), is_beyond((5, 5, 22, 9), 20, 10)
        (False, True)
    """
    x1, y1, x2, y2 = sides
    inside = (x1 < width) & (y1 < height) & (x2 > 0) & (y2 > 0)
    over = (x1 < -tolerance) | (y1 < -tolerance)
    over = over | (x2 > width + tolerance) | (y2 > height + tolerance)
    return has_area(sides) & inside & over


def is_off_mask(
    sides: Sequence, around_mask: Sequence, tolerance: Any = MASK_TOLERANCE
) -> Any:
    """Whether a side is further than that from that of its mask: DET008."""
    off = [
        (side < other - tolerance) | (side > other + tolerance)
        for side, other in zip(sides, around_mask)
    ]
    return has_area(sides) & (off[0] | off[1] | off[2] | off[3])


def is_near(
    sides: Sequence, others: Sequence, tolerance: float = NEAR_TOLERANCE
) -> Any:
    """Whether two boxes with an area are nearly the same: DET010.

    No side is further from that of the other than the tolerance, and their
    intersection over union is at least 0.5, as small objects may stand
    closely together.

    Examples:
        >>> bool(is_near((0, 0, 20, 20), (2, 2, 22, 22)))
        True
        >>> bool(is_near((0, 0, 6, 6), (2, 2, 8, 8)))
        False
    """
    x1, y1, x2, y2 = sides
    u1, v1, u2, v2 = others
    close = has_area(sides) & has_area(others)
    for side, other in zip(sides, others):
        close = close & (side <= other + tolerance)
        close = close & (other <= side + tolerance)
    with np.errstate(invalid='ignore', over='ignore'):
        wide = np.minimum(x2, u2) - np.maximum(x1, u1)
        high = np.minimum(y2, v2) - np.maximum(y1, v1)
        both = wide * high
        union = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - both
        overlaps = (wide > 0) & (high > 0) & (both >= NEAR_OVERLAP * union)
    return close & overlaps


def close_pairs(
    groups: np.ndarray, lefts: np.ndarray, tolerance: float = NEAR_TOLERANCE
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of boxes that may be nearly the same, some at a time.

    Args:
        groups: ``(N,)``, numbers of their images.
        lefts: ``(N,)``, their left sides; NaN is close to none.
        tolerance: Between left sides, in pixels.

    Yields:
        Rows of the first and of the second of each pair, ``(K,)`` each, of
        one group and with left sides as close as that.

    Examples:
        >>> pairs = close_pairs(np.array([1, 1, 2]), np.array([4, 3, 3]))
        >>> [(one.tolist(), other.tolist()) for one, other in pairs]
        [([1], [0])]
    """
    order = np.lexsort((lefts, groups))
    first = np.arange(len(order))
    for step in range(1, len(order)):
        first = first[first + step < len(order)]
        one, other = order[first], order[first + step]
        # In the order of left sides, so that all that follow are further.
        close = groups[one] == groups[other]
        close &= lefts[other] <= lefts[one] + tolerance
        first, one, other = first[close], one[close], other[close]
        if not len(first):
            return
        yield one, other
