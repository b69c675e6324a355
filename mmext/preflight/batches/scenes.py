"""Made-up pictures with objects whose boxes, masks and labels are known."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

__all__ = ['Scene', 'make_scene']

# Sides of objects as parts of the picture's shorter one: from what the
# finest level of a pyramid takes to what the coarsest does.
_SIDES = (0.12, 0.2, 0.3, 0.45, 0.65, 0.9)
_CROWD = 200
# Of a polygon that stands for an ellipse.
_CORNERS = 12


@dataclass(frozen=True)
class Scene:
    """A picture and what is in it.

    Attributes:
        image: ``(H, W, C)``, uint8.
        boxes: ``(N, 4)``, float32, x1 y1 x2 y2 in pixels.
        labels: ``(N,)``, int64, in ``[0, num_classes)``.
        ignored: ``(N,)``, bool; True for crowds, which are not learned.
        blocks: ``(H, W)``, int64, in ``[0, 1 << 16)``: numbers of areas, for
            labels of pixels; -1 for pixels to ignore.
    """

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    ignored: np.ndarray
    blocks: np.ndarray

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.image.shape[:2]

    def polygons(self) -> list[list[np.ndarray]]:
        """Outlines of the objects: ``[x1 y1 x2 y2 ...]``, one for each."""
        angles = np.linspace(0, 2 * np.pi, _CORNERS, endpoint=False)
        ring = np.stack([np.cos(angles), np.sin(angles)], 1)
        centres = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        halves = (self.boxes[:, 2:] - self.boxes[:, :2]) / 2
        return [
            [(centre + half * ring).reshape(-1).astype(np.float32)]
            for centre, half in zip(centres, halves)
        ]

    def bitmaps(self) -> np.ndarray:
        """Pixels of the objects; ``(N, H, W)``, uint8, ellipses."""
        height, width = self.size
        masks = np.zeros((len(self.boxes), height, width), np.uint8)
        y, x = np.mgrid[:height, :width] + 0.5
        for mask, (x1, y1, x2, y2) in zip(masks, self.boxes):
            across = (2 * x - x1 - x2) / (x2 - x1)
            down = (2 * y - y1 - y2) / (y2 - y1)
            mask[across**2 + down**2 <= 1] = 1
        return masks

    def pixel_labels(
        self, num_classes: int, *, first: int = 0, ignore_index: int = 255
    ) -> np.ndarray:
        """Labels of the pixels by the areas of the picture.

        Args:
            num_classes: How many there are to choose from.
            first: The first of them.
            ignore_index: Label of pixels to ignore.

        Returns:
            ``(H, W)``, int64.
        """
        labels = first + self.blocks % max(num_classes, 1)
        return np.where(self.blocks < 0, ignore_index, labels)

    def panoptic_labels(
        self, num_things: int, num_stuff: int, *, ignore_index: int = 255
    ) -> np.ndarray:
        """Labels of the pixels: objects lie on areas of stuff.

        Args:
            num_things: Number of classes of objects, which come first.
            num_stuff: Number of classes of areas.
            ignore_index: Label of pixels to ignore.

        Returns:
            ``(H, W)``, int64.
        """
        labels = self.pixel_labels(
            num_stuff, first=num_things, ignore_index=ignore_index
        )
        for mask, label in zip(self.bitmaps(), self.labels):
            labels[mask.astype(bool)] = label
        return labels


def make_scene(
    kind: str,
    size: tuple[int, int],
    *,
    num_classes: int,
    channels: int = 3,
    rng: Generator,
) -> Scene:
    """Make up a picture.

    Args:
        kind: ``'normal'``: six objects of several classes and sizes.
            ``'empty'``: none, and all pixels are to be ignored.
            ``'one-class'``: one class, of all objects and pixels.
            ``'crowded'``: 200 objects, a tenth of them crowds.
        size: Height and width in pixels.
        num_classes: Number of classes of the objects.
        channels: Of the picture.
        rng: Source of all that is random.

    Returns:
        The picture and what is in it.
    """
    height, width = size
    count = {'empty': 0, 'crowded': _CROWD}.get(kind, len(_SIDES))
    if kind == 'crowded':
        sides = rng.uniform(0.05, 0.3, (count, 2)) * min(size)
    else:
        sides = np.array(_SIDES[:count]).reshape(-1, 1) * min(size)
        sides = sides * rng.uniform(0.8, 1.1, (count, 2))
    limits = np.array([width, height])
    # Degenerate boxes are an error of the data, not a kind of batch.
    sides = np.clip(sides, 4, np.maximum(limits - 1, 1))
    corners = rng.uniform(0, 1, (count, 2)) * (limits - sides)
    boxes = np.concatenate([corners, corners + sides], 1).astype(np.float32)
    labels = _labels(kind, count, num_classes, rng)
    ignored = np.zeros(count, bool)
    if kind == 'crowded':
        ignored[::10] = True
    scene = Scene(
        image=np.empty((height, width, channels), np.uint8),
        boxes=boxes,
        labels=labels,
        ignored=ignored,
        blocks=_blocks(kind, size, rng),
    )
    _paint(scene, rng)
    return scene


def _labels(
    kind: str, count: int, num_classes: int, rng: Generator
) -> np.ndarray:
    if kind == 'one-class':
        return np.zeros(count, np.int64)
    # Neighbours in a permutation differ, so several classes are present.
    order = rng.permutation(num_classes)
    return order[np.arange(count) % num_classes].astype(np.int64)


def _blocks(kind: str, size: tuple[int, int], rng: Generator) -> np.ndarray:
    """Numbers of areas, -1 where a pixel is to be ignored."""
    if kind == 'empty':
        return np.full(size, -1, np.int64)
    parts, share = (24, 0.2) if kind == 'crowded' else (5, 0.05)
    # Neighbouring numbers, so that all of a few classes are present.
    numbers = rng.permutation(parts**2).reshape(parts, parts)
    numbers += rng.integers(1 << 15)
    if kind == 'one-class':
        numbers[:] = 0
    rows = np.arange(size[0]) * parts // size[0]
    columns = np.arange(size[1]) * parts // size[1]
    blocks = numbers[rows][:, columns]
    # Borders of areas are what annotators leave open.
    ignored = max(1, round(size[1] * share))
    blocks[:, -ignored:] = -1
    return blocks


def _paint(scene: Scene, rng: Generator) -> None:
    """Noise, areas in their colours, and a colour for each class."""
    image = scene.image
    image[:] = rng.integers(0, 60, image.shape)
    image += (scene.blocks % 7 * 12).astype(np.uint8)[..., None]
    colours = rng.integers(60, 255, (97, image.shape[2]), dtype=np.uint8)
    for (x1, y1, x2, y2), label in zip(
        scene.boxes.round().astype(int), scene.labels
    ):
        image[y1:y2, x1:x2] = colours[label % 97]
