"""Draw labelled pictures of overlapping, textured shapes: no files here.

The class of a shape is its outline: texture, size, angle and stretch are drawn
independently of it, and so is the colour unless ``hue_by_class`` is set.
Shapes lie on top of each other; the label of a shape is the part of it that
can be seen.

Shape letters used in this file: H height, W width of the picture in pixels,
h and w of the part of it around one shape, N shapes, P corners.
"""

import colorsys
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from .dataset_folder import check_number, check_size

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


Weights = NDArray[np.float32]


def _rotated_grid(
    rng: Generator, height: int, width: int, scale: float
) -> tuple[Weights, Weights]:
    """Coordinates in periods, at a random angle, phase and period.

    A period is 8 % to 22 % of ``scale`` and at least 4 pixels, so that
    neighbouring repeats stay apart after a JPEG round trip.
    """
    angle = rng.uniform(0, math.pi)
    period = max(4.0, rng.uniform(0.08, 0.22) * scale)
    phase_u, phase_v = rng.uniform(0, 1, 2)
    x = np.arange(width, dtype=np.float32)[None] / np.float32(period)
    y = np.arange(height, dtype=np.float32)[:, None] / np.float32(period)
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    u = x * cos + y * sin + np.float32(phase_u)
    v = y * cos - x * sin + np.float32(phase_v)
    return u, v


def _plain(rng: Generator, height: int, width: int, scale: float) -> Weights:
    return np.full((height, width), rng.uniform(0, 0.3), dtype=np.float32)


def _stripes(rng: Generator, height: int, width: int, scale: float) -> Weights:
    u, _ = _rotated_grid(rng, height, width, scale)
    return (u % 1 < np.float32(rng.uniform(0.35, 0.65))).astype(np.float32)


def _checker(rng: Generator, height: int, width: int, scale: float) -> Weights:
    u, v = _rotated_grid(rng, height, width, scale)
    return ((np.floor(u) + np.floor(v)) % 2).astype(np.float32)


def _dots(rng: Generator, height: int, width: int, scale: float) -> Weights:
    u, v = _rotated_grid(rng, height, width, scale)
    distance = np.hypot(u % 1 - np.float32(0.5), v % 1 - np.float32(0.5))
    return (distance < np.float32(rng.uniform(0.25, 0.4))).astype(np.float32)


def _gradient(
    rng: Generator, height: int, width: int, scale: float
) -> Weights:
    u, _ = _rotated_grid(rng, height, width, scale)
    low, high = float(u.min()), float(u.max())
    return (u - np.float32(low)) / np.float32(max(high - low, 1e-6))


def _noise(rng: Generator, height: int, width: int, scale: float) -> Weights:
    """Random values on a coarse grid, smoothly enlarged."""
    cell = max(3.0, rng.uniform(0.04, 0.15) * scale)
    rows = math.ceil(height / cell) + 2
    columns = math.ceil(width / cell) + 2
    coarse = rng.random((rows, columns), dtype=np.float32)
    fine = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(fine, 0, 1)


# Weights of the second colour, float32 in [0, 1]. Their order decides which
# pictures a seed gives.
PATTERNS: dict[str, Callable[[Generator, int, int, float], Weights]] = {
    'plain': _plain,
    'stripes': _stripes,
    'checker': _checker,
    'dots': _dots,
    'gradient': _gradient,
    'noise': _noise,
}


_CONTRAST = 90.0  # least distance in BGR between a shape and the ground
_COLOR_TRIES = 12
_HUE_WIDTH = 0.4  # of the distance between the hues of two classes
# Least share of a shape's own area that can be seen; the border of the
# picture and other shapes hide the rest. All shapes that are drawn have it,
# so that none is without a label.
_MIN_VISIBLE = 0.6

Image = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ShapesSpec:
    """What a generated data set looks like.

    Args:
        image_size: W and H of every picture in pixels, 32 to 8192.
        min_objects: Fewest shapes on a picture that is not empty, from 1.
        max_objects: Most shapes on a picture.
        empty_fraction: Chance in [0, 1] that a picture has no shapes.
        hue_by_class: Chance in [0, 1] that a shape is painted in shades of a
            hue that belongs to its class. 0 is hard: only the outline tells.
            1 is learnt in minutes, as ripe tomatoes are.
        classes: Names from ``SHAPE_CLASSES`` that are drawn, all equally
            often. Labels keep their numbers whatever is left out.
        seed: Of the whole set, 0 to ``2**32 - 1``.

    Raises:
        TypeError: If a number that must be an integer is not.
        ValueError: If a setting is out of its range.

    Examples:
        >>> ShapesSpec(image_size=(160, 120)).max_objects
        6
    """

    image_size: tuple[int, int] = (128, 128)
    min_objects: int = 1
    max_objects: int = 6
    empty_fraction: float = 0.05
    hue_by_class: float = 0.0
    classes: tuple[str, ...] = SHAPE_CLASSES
    seed: int = 0

    def __post_init__(self):
        check_size(self.image_size, 32, 8192)
        check_number('min_objects', self.min_objects, 1, 1000)
        check_number('max_objects', self.max_objects, self.min_objects, 1000)
        # A larger seed takes two words of the seed sequence and could give
        # the stream of another (seed, split, index).
        check_number('seed', self.seed, 0, 2**32 - 1)
        for name in ('empty_fraction', 'hue_by_class'):
            check_number(name, getattr(self, name), 0, 1, integer=False)
        if not self.classes or set(self.classes) - set(SHAPE_CLASSES):
            raise ValueError(
                f'classes must be some of {SHAPE_CLASSES}, got {self.classes}'
            )


@dataclass(frozen=True)
class ShapesSample:
    """One picture with its labels, topmost shape first.

    Args:
        image: BGR picture, shape ``(H, W, 3)``, uint8.
        labels: Indices into ``SHAPE_CLASSES``, shape ``(N,)``, int64.
        boxes: Tight boxes of the masks, shape ``(N, 4)``, int64: left, top,
            width and height in pixels.
        masks: What can be seen of each shape, shape ``(N, H, W)``, bool. No
            two overlap.
    """

    image: NDArray[np.uint8]
    labels: NDArray[np.int64]
    boxes: NDArray[np.int64]
    masks: NDArray[np.bool_]

    def semantic_map(self) -> NDArray[np.uint8]:
        """Class of each pixel, shape ``(H, W)``: 0 ground, else label + 1."""
        result = np.zeros(self.image.shape[:2], dtype=np.uint8)
        for label, mask in zip(self.labels, self.masks):
            result[mask] = label + 1
        return result


def _random_color(rng: Generator, label: int | None = None) -> Image:
    """A BGR colour in [0, 255], shape ``(3,)``, seldom grey or black.

    With a label, a strong colour of the hue that belongs to the class.
    """
    hue, saturation, value = rng.uniform((0, 0.1, 0.25), 1)
    if label is not None:
        hue = (label + _HUE_WIDTH * (hue - 0.5)) / len(SHAPE_CLASSES) % 1.0
        saturation, value = 0.6 + 0.4 * saturation, 0.45 + 0.55 * value
    return np.array(
        colorsys.hsv_to_rgb(hue, saturation, value)[::-1], dtype=np.float32
    ) * np.float32(255)


def _color_apart(
    rng: Generator, *others: Image, label: int | None = None
) -> Image:
    """The random colour that is far enough from, or farthest from, others."""
    best, best_distance = others[0], -1.0
    for _ in range(_COLOR_TRIES):
        color = _random_color(rng, label)
        distance = min(
            float(np.linalg.norm(color - other)) for other in others
        )
        if distance > best_distance:
            best, best_distance = color, distance
        if distance >= _CONTRAST:
            break
    return best


def _paint(
    rng: Generator,
    size: tuple[int, int],
    scale: float,
    first: Image,
    second: Image,
) -> Image:
    """A random pattern in two colours, shape ``(*size, 3)``."""
    pattern = tuple(PATTERNS.values())[rng.integers(len(PATTERNS))]
    weights = pattern(rng, *size, scale)
    return first + weights[..., None] * (second - first)


def _light(rng: Generator, canvas: Image) -> Image:
    """Slanted light, blur and sensor noise; may exceed [0, 255]."""
    height, width = canvas.shape[:2]
    angle, slope = rng.uniform(0, 2 * math.pi), rng.uniform(0, 0.35)
    x = np.linspace(-1, 1, width, dtype=np.float32)[None]
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    tilt = x * np.float32(slope * math.cos(angle))
    tilt = tilt + y * np.float32(slope * math.sin(angle))
    canvas = (
        canvas * ((1 + tilt) * np.float32(rng.uniform(0.75, 1.1)))[..., None]
    )
    sigma = rng.uniform(0, 0.9)
    if sigma > 0.3:  # below it a 3 x 3 kernel does nothing
        canvas = cv2.GaussianBlur(canvas, (3, 3), sigma)
    strength = np.float32(rng.uniform(0, 7))
    return canvas + strength * rng.standard_normal(
        canvas.shape, dtype=np.float32
    )


def _draw_image(
    rng: Generator, spec: ShapesSpec, shapes: list[PlacedShape]
) -> NDArray[np.uint8]:
    width, height = spec.image_size
    # The ground is of two similar colours.
    ground = [_random_color(rng)]
    shift = rng.uniform(-45, 45, 3).astype(np.float32)
    ground.append(np.clip(ground[0] + shift, 0, 255))
    # Fine enough that a dot is smaller than the smallest circle.
    canvas = _paint(rng, (height, width), min(height, width) / 2, *ground)
    for shape in shapes:
        cued = spec.hue_by_class > 0 and rng.random() < spec.hue_by_class
        label = shape.label if cued else None
        first = _color_apart(rng, *ground, label=label)
        second = _color_apart(rng, *ground, label=label)
        size = shape.visible.shape
        fill = _paint(rng, size, max(size), first, second)
        np.copyto(canvas[shape.window], fill, where=shape.visible[..., None])
    canvas = _light(rng, canvas)
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)


def draw_sample(spec: ShapesSpec, *, split: int, index: int) -> ShapesSample:
    """Draw one picture; the same arguments give the same picture.

    Nothing depends on other pictures, so a larger set begins with the
    pictures of a smaller one, and pictures may be drawn in any order.

    Args:
        spec: Settings of the data set.
        split: Number of the split, from 0; each has pictures of its own.
        index: Number of the picture in its split, from 0.

    Returns:
        The picture with its labels.

    Raises:
        ValueError: If ``spec.min_objects`` shapes find no room.

    Note:
        Equal bytes are promised for equal versions of numpy and OpenCV.

    Examples:
        >>> spec = ShapesSpec(image_size=(64, 48), empty_fraction=0.0)
        >>> sample = draw_sample(spec, split=0, index=0)
        >>> sample.image.shape, len(sample.labels) == len(sample.masks)
        ((48, 64, 3), True)
    """
    rng = np.random.default_rng([spec.seed, split, index])
    width, height = spec.image_size
    count = int(rng.integers(spec.min_objects, spec.max_objects + 1))
    if rng.random() < spec.empty_fraction:
        count = 0
    shapes = place_shapes(
        rng,
        count=count,
        width=width,
        height=height,
        min_visible=_MIN_VISIBLE,
        classes=spec.classes,
    )
    if len(shapes) < min(count, spec.min_objects):
        raise ValueError(
            f'min_objects must leave room on a picture of {width} x {height}, '
            f'got {spec.min_objects} and only {len(shapes)} fit on picture '
            f'{index} of split {split}; lower min_objects or raise '
            'image_size'
        )
    image = _draw_image(rng, spec, shapes)
    labels = np.array([shape.label for shape in shapes], dtype=np.int64)
    boxes = [(s.left, s.top, *s.visible.shape[::-1]) for s in shapes]
    masks = np.zeros((len(shapes), height, width), dtype=bool)
    for mask, shape in zip(masks, shapes):
        mask[shape.window] = shape.visible
    boxes = np.array(boxes, dtype=np.int64).reshape(-1, 4)
    return ShapesSample(image, labels, boxes, masks)
