"""Outlines of the shape classes and their placement on a picture.

Shape letters used in this file: H height, W width of the picture in pixels,
h and w of the part of it around one shape, P corners.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

SHAPE_CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')

_DIAMETER = (0.2, 0.5)  # of the short side of the picture
_MIN_DIAMETER = 9.0  # pixels; below it a star cannot be told from a cross
_STRETCH = 1.25
_MIN_BOX = 4  # pixels of width and of height that can be seen
_ATTEMPTS = 60
_SHRINK = 0.98  # per attempt: a crowded picture gets smaller shapes
_FRACTION_BITS = 4  # of the corners that OpenCV gets


@dataclass(frozen=True)
class PlacedShape:
    """A shape on the picture, as far as nothing covers it.

    Attributes:
        label: Index into ``SHAPE_CLASSES``.
        left: First column of ``visible`` on the picture.
        top: First row of ``visible`` on the picture.
        visible: ``(h, w)`` bool, cut to the tight box of what can be seen.
        fraction: Share of the shape's own area that ``visible`` is, (0, 1].
    """

    label: int
    left: int
    top: int
    visible: NDArray[np.bool_]
    fraction: float

    @property
    def window(self) -> tuple[slice, slice]:
        """Rows and columns of ``visible`` on the picture."""
        height, width = self.visible.shape
        return (
            slice(self.top, self.top + height),
            slice(self.left, self.left + width),
        )


def _spokes(radii: list[float], count: int) -> NDArray[np.float64]:
    """Corners at equal angles; the radii repeat. Shape ``(P, 2)``."""
    angles = np.arange(count) * 2 * math.pi / count
    unit = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return unit * np.resize(radii, count)[:, None]


def _cross(arm: float, half_width: float) -> NDArray[np.float64]:
    """Four arms along the axes. Shape ``(12, 2)``."""
    quarter = np.array(
        [(arm, -half_width), (arm, half_width), (half_width, half_width)]
    )
    turn = np.array([(0.0, 1.0), (-1.0, 0.0)])  # row vectors, 90 degrees
    parts = [quarter]
    for _ in range(3):
        parts.append(parts[-1] @ turn)
    return np.concatenate(parts)


@cache
def unit_outline(name: str) -> tuple[NDArray[np.float64], ...]:
    """Closed contours ``(P, 2)`` of a shape, x and y in [-1, 1].

    To be filled by the even-odd rule: the second one of the ring is its hole.
    """
    outlines = {
        'circle': (_spokes([0.9], 40),),
        'square': (_spokes([1.0], 4),),
        'triangle': (_spokes([1.0], 3),),
        'star': (_spokes([1.0, 0.42], 10),),
        'ring': (_spokes([0.95], 40), _spokes([0.5], 40)),
        'cross': (_cross(0.95, 0.27),),
    }
    return outlines[name]


def _random_pose(
    rng: Generator, width: int, height: int, size: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A matrix (stretch, then turn) and a centre inside the picture."""
    diameter = rng.uniform(*_DIAMETER) * min(width, height) * size
    radius = max(diameter, _MIN_DIAMETER) / 2
    stretch = _STRETCH ** rng.uniform(-0.5, 0.5)
    angle = rng.uniform(0, 2 * math.pi)
    cos, sin = math.cos(angle), math.sin(angle)
    # Row vectors: point @ matrix + centre.
    matrix = np.array(
        [
            (radius * stretch * cos, radius * stretch * sin),
            (-radius / stretch * sin, radius / stretch * cos),
        ]
    )
    return matrix, rng.uniform((0, 0), (width, height))


def _fill(
    contours: list[NDArray[np.float64]],
) -> tuple[NDArray[np.bool_], int, int]:
    """Fill contours, also outside the picture: mask, its left and its top."""
    corners = np.concatenate(contours)
    left, top = np.floor(corners.min(0)).astype(int) - 1
    right, bottom = np.ceil(corners.max(0)).astype(int) + 2
    mask = np.zeros((bottom - top, right - left), dtype=np.uint8)
    fixed = [
        np.rint((part - (left, top)) * 2**_FRACTION_BITS).astype(np.int32)
        for part in contours
    ]
    cv2.fillPoly(mask, fixed, 1, shift=_FRACTION_BITS)
    return mask.astype(bool), int(left), int(top)


def _place_one(
    rng: Generator,
    label: int,
    size: float,
    taken: NDArray[np.bool_],
    min_visible: float,
) -> PlacedShape | None:
    """One random try below what is ``taken``; None if it is too hidden."""
    height, width = taken.shape
    matrix, centre = _random_pose(rng, width, height, size)
    mask, left, top = _fill(
        [part @ matrix + centre for part in unit_outline(SHAPE_CLASSES[label])]
    )
    area = np.count_nonzero(mask)
    cut_left, cut_top = max(-left, 0), max(-top, 0)
    mask = mask[cut_top : height - top, cut_left : width - left]
    left, top = left + cut_left, top + cut_top
    rows, columns = mask.shape
    visible = mask & ~taken[top : top + rows, left : left + columns]
    fraction = np.count_nonzero(visible) / area
    if fraction < min_visible:
        return None
    ys = np.flatnonzero(visible.any(1))
    xs = np.flatnonzero(visible.any(0))
    tight = visible[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1]
    if min(tight.shape) < _MIN_BOX:
        return None
    return PlacedShape(
        label, left + int(xs[0]), top + int(ys[0]), tight, fraction
    )


def place_shapes(
    rng: Generator,
    *,
    count: int,
    width: int,
    height: int,
    min_visible: float,
    classes: Sequence[str] = SHAPE_CLASSES,
) -> list[PlacedShape]:
    """Place up to ``count`` shapes, topmost first; fewer if there is no room.

    Each has at least ``min_visible`` of its own area uncovered. A shape that
    would be hidden too much is tried again elsewhere and a little smaller; its
    class is kept, so that hard-to-place classes are as frequent as others.
    Nothing that is placed ends up below ``min_visible``, since later shapes go
    underneath.
    """
    taken = np.zeros((height, width), dtype=bool)
    placed: list[PlacedShape] = []
    for _ in range(count):
        label = SHAPE_CLASSES.index(classes[rng.integers(len(classes))])
        for attempt in range(_ATTEMPTS):
            shape = _place_one(
                rng, label, _SHRINK**attempt, taken, min_visible
            )
            if shape is not None:
                taken[shape.window] |= shape.visible
                placed.append(shape)
                break
        else:
            break
    return placed
