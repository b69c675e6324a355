"""Rooms with spheres, boxes and pillars: class, depth and normals by rays.

The camera looks along z, x is to the right and y is down; a pixel in column u
and row v has the ray ``((u - cx) / f, (v - cy) / f, 1)`` (see
:func:`scene_rays`), so that the distance along the ray, in units of its
length, is the depth. Depth and normals are exact: they are solutions of
equations of planes, spheres and cylinders, rounded to float32.

Shape letters used in this file: H height, W width of the picture in pixels.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from .dataset_folder import (
    check_counts,
    check_number,
    check_size,
    new_dataset_folder,
)

SCENES_MARKER = 'scenes_dataset.json'
SCENE_CLASSES = ('floor', 'wall', 'ceiling', 'sphere', 'box', 'pillar')
_FLOOR, _WALL, _CEILING, _SPHERE, _BOX, _PILLAR = range(len(SCENE_CLASSES))
# Red, green and blue of each class, which each scene varies by _HUE_SPREAD.
_COLOURS = np.array(
    [
        (0.55, 0.42, 0.28),
        (0.62, 0.64, 0.58),
        (0.85, 0.85, 0.88),
        (0.80, 0.30, 0.25),
        (0.28, 0.45, 0.78),
        (0.35, 0.65, 0.32),
    ]
)
_HUE_SPREAD = 0.35
_FOCAL = 0.9  # of the width
_LIGHT = np.array([-0.45, -0.75, -0.48])  # from a surface to the light
_AMBIENT = 0.35
_EXPOSURE = 2.2
_FADING = 5.0  # metres over which light becomes 1 / e
_TILE = 0.5  # side of the tiles of the floor in metres
_VOID = -1
_VERSION = '1'  # to be raised when the same settings give other scenes

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ScenesSpec:
    """What a generated data set looks like.

    Args:
        image_size: W and H of every picture in pixels, 16 to 4096.
        max_objects: Most spheres and boxes of a scene, 1 to 20; it has from
            one to this many, and none or one pillar.
        noise: Standard deviation of the noise of pictures, in [0, 1]; values
            are cut to [0, 1] after it.
        invalid_fraction: About which share of the pixels has no depth and
            normal, and, elsewhere, no class; in [0, 0.5]. They are
            rectangles, as of a sensor that sees no echo, and single pixels.
        seed: Of the whole set, 0 to ``2**32 - 1``.

    Raises:
        TypeError: If a number that must be an integer is not.
        ValueError: If a setting is out of its range.

    Examples:
        >>> ScenesSpec(image_size=(64, 48)).max_objects
        4
    """

    image_size: tuple[int, int] = (128, 96)
    max_objects: int = 4
    noise: float = 0.02
    invalid_fraction: float = 0.04
    seed: int = 0

    def __post_init__(self):
        check_size(self.image_size, 16, 4096)
        check_number('max_objects', self.max_objects, 1, 20)
        # As of ShapesSpec: a larger seed could give another set's stream.
        check_number('seed', self.seed, 0, 2**32 - 1)
        check_number('noise', self.noise, 0, 1, integer=False)
        share = self.invalid_fraction
        check_number('invalid_fraction', share, 0, 0.5, integer=False)


@dataclass(frozen=True)
class ScenesSample:
    """One scene, in the arrays of the pre-processed NYUv2 files.

    Args:
        image: RGB picture in [0, 1], shape ``(H, W, 3)``, float32.
        label: Index into ``SCENE_CLASSES``, -1 for no class, shape
            ``(H, W)``, float32.
        depth: Along the optical axis in metres, 0 for invalid, shape
            ``(H, W, 1)``, float32.
        normal: Unit vectors towards the camera (x right, y down, z away from
            the camera), (0, 0, 0) for invalid, shape ``(H, W, 3)``, float32.
    """

    image: NDArray[np.float32]
    label: NDArray[np.float32]
    depth: NDArray[np.float32]
    normal: NDArray[np.float32]


def scene_rays(width: int, height: int) -> Array:
    """Ray of each pixel, shape ``(H, W, 3)``; the z of all is 1."""
    focal = _FOCAL * width
    u, v = np.meshgrid(np.arange(width), np.arange(height))
    x = (u - (width - 1) / 2) / focal
    y = (v - (height - 1) / 2) / focal
    return np.stack([x, y, np.ones_like(x)], -1)


def _turn(yaw: float, pitch: float = 0.0) -> Array:
    """Rotation about y and then x, ``(3, 3)``."""
    cos, sin = math.cos(yaw), math.sin(yaw)
    about_y = np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
    cos, sin = math.cos(pitch), math.sin(pitch)
    about_x = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])
    return about_y @ about_x


@dataclass
class _Hits:
    """What the rays meet first; in the axes of the room.

    Distances are in lengths of the ray: infinite where nothing is met.
    """

    distance: Array
    normal: Array
    label: NDArray[np.int64]
    surface: NDArray[np.int64]

    def add(self, distance: Array, normal: Array, label: int) -> None:
        """Put a surface into the scene."""
        nearer = distance < self.distance
        self.distance[nearer] = distance[nearer]
        self.normal[nearer] = normal[nearer]
        self.label[nearer] = label
        self.surface[nearer] = self.surface.max() + 1


def _sides(
    origin: Array, rays: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """Where rays come to the planes of a box: near ones and far ones.

    Both are ``(H, W, 3)``, one for each axis.
    """
    with np.errstate(divide='ignore'):
        inverse = 1 / rays
    first, second = (low - origin) * inverse, (high - origin) * inverse
    return np.minimum(first, second), np.maximum(first, second)


def _axis_normals(rays: Array, axis: NDArray[np.int64]) -> Array:
    """Normals of planes across the axis of each pixel, towards the camera."""
    chosen = np.eye(3)[axis]
    return -np.sign(rays) * chosen


def _room(origin: Array, rays: Array, low: Array, high: Array) -> _Hits:
    """Floor, walls and ceiling around the camera."""
    _, far = _sides(origin, rays, low, high)
    axis = far.argmin(-1)
    normal = _axis_normals(rays, axis)
    down = rays[..., 1] > 0
    label = np.where(axis != 1, _WALL, np.where(down, _FLOOR, _CEILING))
    surface = (
        axis * 2 + (np.take_along_axis(rays, axis[..., None], -1) > 0)[..., 0]
    )
    return _Hits(far.min(-1), normal, label, surface)


def _quadric(
    origin: Array, rays: Array, centre: Array, radius: float, axes: list[int]
) -> tuple[Array, Array]:
    """Sphere, or upright cylinder if ``axes`` leaves out y; with normals."""
    offset = (origin - centre)[axes]
    across = rays[..., axes]
    a = (across**2).sum(-1)
    b = across @ offset
    root = b**2 - a * (offset @ offset - radius**2)
    with np.errstate(invalid='ignore', divide='ignore'):
        distance = (-b - np.sqrt(root)) / a
        distance = np.where(distance > 0, distance, np.inf)
        points = offset + distance[..., None] * across
    normal = np.zeros_like(rays)
    normal[..., axes] = points / radius
    return distance, normal


def _box(
    origin: Array, rays: Array, centre: Array, half: Array, yaw: float
) -> tuple[Array, Array]:
    """Box that is turned about the vertical axis."""
    turn = _turn(yaw)
    local, start = rays @ turn, (origin - centre) @ turn
    near, far = _sides(start, local, -half, half)
    distance = near.max(-1)
    met = (distance <= far.min(-1)) & (distance > 0)
    normal = _axis_normals(local, near.argmax(-1)) @ turn.T
    return np.where(met, distance, np.inf), normal


def _objects(
    rng: Generator, spec: ScenesSpec, low: Array, high: Array
) -> Iterator[tuple[int, dict]]:
    """Class and measures of what stands in the room; y of the floor is 0."""
    taken: list[tuple[float, float, float]] = []
    count = int(rng.integers(1, spec.max_objects + 1))
    kinds = [_SPHERE if rng.random() < 0.6 else _BOX for _ in range(count)]
    kinds += [_PILLAR] if rng.random() < 0.6 else []
    for kind in kinds:
        size = rng.uniform(0.12, 0.25) * (1 if kind == _PILLAR else 1.8)
        # In front of the camera, inside of the room, and apart.
        for _ in range(8):
            z = rng.uniform(1.6, high[2] - size)
            x = rng.uniform(-0.42, 0.42) * z
            x = min(max(x, low[0] + size), high[0] - size)
            if all(
                math.hypot(x - other[0], z - other[1]) > size + other[2]
                for other in taken
            ):
                break
        else:
            continue
        taken.append((x, z, 1.4 * size))
        if kind == _BOX:
            half = size * np.array([*rng.uniform(0.6, 1.0, 3)])
            half[1] *= rng.uniform(0.8, 1.8)
            centre = np.array([x, -half[1], z])
            yaw = rng.uniform(0, math.pi / 2)
            yield kind, {'centre': centre, 'half': half, 'yaw': yaw}
        else:
            centre = np.array([x, -size, z])
            axes = [0, 1, 2] if kind == _SPHERE else [0, 2]
            yield kind, {'centre': centre, 'radius': size, 'axes': axes}


def _shade(
    rng: Generator, spec: ScenesSpec, hits: _Hits, normal: Array, floor: Array
) -> Array:
    """Picture of the scene: Lambert's law, fading with distance, noise."""
    shape = hits.label.shape
    colours = _COLOURS[hits.label]
    # Each surface is a little lighter or darker than others of its class.
    tints = rng.normal(0, _HUE_SPREAD, (hits.surface.max() + 1, 3))
    tints = 0.5 * tints + 0.5 * tints.mean(-1, keepdims=True)
    colours = colours * np.exp(tints)[hits.surface]
    tiles = np.floor(floor[..., 0] / _TILE) + np.floor(floor[..., 2] / _TILE)
    dark = (hits.label == _FLOOR) & (tiles % 2 == 0)
    colours = np.where(dark[..., None], 0.8 * colours, colours)
    light = _LIGHT / np.linalg.norm(_LIGHT)
    lambert = np.maximum(normal @ light, 0)
    bright = (_AMBIENT + (1 - _AMBIENT) * lambert) * np.exp(
        -hits.distance / _FADING
    )
    picture = _EXPOSURE * colours * bright[..., None]
    return np.clip(picture + rng.normal(0, spec.noise, (*shape, 3)), 0, 1)


def _holes(
    rng: Generator, width: int, height: int, fraction: float
) -> NDArray[np.bool_]:
    """Pixels without a label: two rectangles and single ones, half each."""
    holes = rng.random((height, width)) < fraction / 2
    for _ in range(2):
        # Each a quarter of the share on average, of any form.
        stretch = math.exp(rng.uniform(-0.7, 0.7))
        side = math.sqrt(fraction / 4 * rng.uniform(0.5, 1.5))
        w, h = round(width * side * stretch), round(height * side / stretch)
        left = int(rng.integers(0, max(width - w, 0) + 1))
        top = int(rng.integers(0, max(height - h, 0) + 1))
        holes[top : top + h, left : left + w] = True
    return holes


def draw_scene(spec: ScenesSpec, *, split: int, index: int) -> ScenesSample:
    """Draw one scene; the same arguments give the same scene.

    Args:
        spec: Settings of the data set.
        split: Number of the split, from 0; scenes of two differ.
        index: Number of the scene in its split, from 0.
    """
    rng = np.random.default_rng((spec.seed, split, index))
    width, height = spec.image_size
    # The floor is at y = 0, the camera above it, and y is down.
    low = np.array([-rng.uniform(1.6, 2.6), -rng.uniform(2.3, 2.9), -1.0])
    high = np.array([rng.uniform(1.6, 2.6), 0.0, rng.uniform(3.5, 5.5)])
    origin = np.array([0.0, -rng.uniform(1.1, 1.6), 0.0])
    turn = _turn(rng.uniform(-0.35, 0.35), -rng.uniform(0.02, 0.3))
    rays = scene_rays(width, height) @ turn.T
    hits = _room(origin, rays, low, high)
    for kind, measures in _objects(rng, spec, low, high):
        shape = _box if kind == _BOX else _quadric
        hits.add(*shape(origin, rays, **measures), kind)
    normal = hits.normal @ turn
    points = origin + hits.distance[..., None] * rays
    image = _shade(rng, spec, hits, normal, points)
    label = hits.label.astype(np.float32)
    no_depth, no_label = (
        _holes(rng, width, height, spec.invalid_fraction) for _ in range(2)
    )
    label[no_label] = _VOID
    depth = hits.distance.astype(np.float32)[..., None]
    depth[no_depth] = 0
    normal = normal.astype(np.float32)
    normal[no_depth] = 0
    return ScenesSample(image.astype(np.float32), label, depth, normal)


def write_scenes_dataset(
    out: str | os.PathLike,
    spec: ScenesSpec,
    *,
    num_train: int,
    num_val: int,
    overwrite: bool = False,
    on_image: Callable[[], None] | None = None,
) -> dict[str, int]:
    """Generate a data set on disk, completely or not at all.

    In the layout of the public pre-processed NYUv2:
    ``{train,val}/{image,label,depth,normal}/{i}.npy`` with ``i`` from 0, and
    the arrays of :class:`ScenesSample`; ``scenes_dataset.json`` has the
    settings. Arguments and errors are those of
    :func:`~mmext.datasets.write_shapes_dataset`.

    Returns:
        The number of scenes of each split.
    """
    counts = check_counts(num_train, num_val)
    settings = {
        'generator': 'mmext.datasets.write_scenes_dataset',
        'version': _VERSION,
        'classes': SCENE_CLASSES,
        'counts': counts,
        **asdict(spec),
    }
    written = {name: count for name, count in counts.items() if count}
    with new_dataset_folder(out, SCENES_MARKER, overwrite=overwrite) as new:
        for name, count in written.items():
            folders = [
                new / name / field.name for field in fields(ScenesSample)
            ]
            for folder in folders:
                folder.mkdir(parents=True)
            for index in range(count):
                split = tuple(counts).index(name)
                scene = draw_scene(spec, split=split, index=index)
                for folder in folders:
                    array = getattr(scene, folder.name)
                    np.save(folder / f'{index}.npy', array)
                if on_image is not None:
                    on_image()
        (new / SCENES_MARKER).write_text(
            json.dumps(settings), encoding='utf-8'
        )
    return written
