"""Draw boxes, masks and their names on images; no window system is needed.

All pictures are ``(H, W, 3)`` uint8 arrays in the order red, green, blue, and
all boxes ``(N, 4)`` as x1 y1 x2 y2 in pixels of the image.
"""

import colorsys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from ..utils.files import atomic_path
from ._labels import Color, draw_labels, ink_on

__all__ = [
    'class_palette',
    'draw_instances',
    'picture_scale',
    'write_picture',
]

PICTURE_SIDE = 640
"""Smaller pictures are enlarged, by a whole factor, up to this length."""

_MASK_ALPHA = 0.45
_FIRST_COLORS = (
    (30, 144, 255),
    (255, 150, 0),
    (60, 210, 60),
    (230, 20, 150),
    (255, 230, 30),
    (140, 80, 255),
    (0, 215, 215),
    (225, 30, 30),
    (255, 175, 205),
    (150, 100, 50),
)


def class_palette(
    num_classes: int, given: Sequence[Sequence[int]] | str | None = None
) -> list[Color]:
    """Give every class a colour that is told apart from its neighbours.

    Args:
        num_classes: How many colours are needed.
        given: Colours of a data set, red green blue in [0, 255]. Used when
            there is one per class. Any other number belongs to the classes
            of a base data set, and a name such as ``'random'`` is no colour.

    Returns:
        ``num_classes`` colours.

    Examples:
        >>> class_palette(2, [(1, 2, 3), (4, 5, 6)])
        [(1, 2, 3), (4, 5, 6)]
        >>> len(set(class_palette(80)))
        80
    """
    if given and not isinstance(given, str) and len(given) == num_classes:
        return [tuple(map(int, color)) for color in given]
    colors = list(_FIRST_COLORS[:num_classes])
    for index in range(len(colors), num_classes):
        # Steps of the golden ratio spread hues evenly for any number.
        hue = (0.58 + index * 0.618034) % 1.0
        value = (1.0, 0.8, 0.9)[index % 3]
        rgb = colorsys.hsv_to_rgb(hue, 0.85, value)
        colors.append(tuple(round(255 * part) for part in rgb))
    return colors


def picture_scale(
    height: int, width: int, *, side: int = PICTURE_SIDE, shrink: bool = False
) -> float:
    """By how much an image is enlarged before anything is drawn on it.

    Args:
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        side: Length in pixels that the longer side may have.
        shrink: Whether larger images are made smaller to fit.

    Returns:
        The largest whole factor that keeps the longer side within ``side``;
        1 for larger images, or, with ``shrink``, the fraction that fits.

    Examples:
        >>> picture_scale(64, 64), picture_scale(480, 300)
        (10.0, 1.0)
        >>> picture_scale(1280, 720), picture_scale(1280, 720, shrink=True)
        (1.0, 0.5)
    """
    longer = max(height, width, 1)
    if longer > side:
        return side / longer if shrink else 1.0
    return float(side // longer)


def _draw_boxes(
    canvas: np.ndarray, boxes: np.ndarray, colors: Sequence[Color]
) -> None:
    """Rectangles with a black or white rim; the first one ends up on top."""
    thick = max(2, round(max(canvas.shape[:2]) / 400))
    for box, color in reversed(list(zip(boxes, colors))):
        x1, y1, x2, y2 = (round(value) for value in box.tolist())
        for width, ink in ((thick + 2, ink_on(color)), (thick, color)):
            cv2.rectangle(canvas, (x1, y1), (x2, y2), ink, width)


def _draw_masks(
    canvas: np.ndarray, masks: np.ndarray, colors: Sequence[Color]
) -> None:
    """Tinted areas with an outline, in place; the first ends up on top."""
    height, width = canvas.shape[:2]
    for mask, color in reversed(list(zip(masks, colors))):
        area = cv2.resize(
            mask.astype(np.uint8),
            (width, height),
            interpolation=cv2.INTER_NEAREST,
        )
        inside = area.astype(bool)
        tint = (1 - _MASK_ALPHA) * canvas[inside] + _MASK_ALPHA * np.array(
            color
        )
        canvas[inside] = tint.round().astype(np.uint8)
        outline, _ = cv2.findContours(
            area, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
        )
        cv2.drawContours(canvas, outline, -1, color, 1)


def _check_instances(
    image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, num_names: int
) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f'image must be (H, W, 3) uint8, got {image.shape} {image.dtype}'
        )
    if boxes.ndim != 2 or boxes.shape[1] != 4 or len(boxes) != len(labels):
        raise ValueError(
            'boxes must be (N, 4) with one label each, got '
            f'{boxes.shape} with {len(labels)} labels'
        )
    if not np.isfinite(boxes).all():
        where = int(np.nonzero(~np.isfinite(boxes).all(axis=1))[0][0])
        raise ValueError(
            f'boxes must be finite, got {boxes[where].tolist()} at {where}'
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_names:
        raise ValueError(
            f'labels must be in [0, {num_names}), the number of classes, got '
            f'{labels.min()} to {labels.max()}'
        )


def draw_instances(
    image: np.ndarray,
    boxes: np.ndarray,
    labels: np.ndarray,
    *,
    classes: Sequence[str],
    scores: np.ndarray | None = None,
    masks: np.ndarray | None = None,
    palette: Sequence[Color] | None = None,
    side: int = PICTURE_SIDE,
    shrink: bool = False,
) -> np.ndarray:
    """Draw objects with their class names and scores.

    An image smaller than ``side`` is enlarged first, see
    :func:`picture_scale`, so that lines and names stay legible at 64 pixels.
    Objects of higher score lie on top and get the better place for the name.

    Args:
        image: ``(H, W, 3)``, uint8, red green blue. Not changed.
        boxes: ``(N, 4)``, x1 y1 x2 y2 in pixels of ``image``; what lies
            outside of the image is cut off.
        labels: ``(N,)``, integers in [0, C).
        classes: The C class names.
        scores: ``(N,)``; without it names stand alone, as for ground truth.
        masks: ``(N, H, W)``, bool.
        palette: One colour per class, by default :func:`class_palette`.
        side: Length in pixels up to which images are enlarged.
        shrink: Whether larger images are made smaller than that.

    Returns:
        The picture, uint8, enlarged or shrunk by :func:`picture_scale`.

    Raises:
        ValueError: If a shape or dtype is another one, a box is not finite,
            or a label has no class name.

    Examples:
        >>> import numpy as np
        >>> picture = draw_instances(
        ...     np.zeros((64, 48, 3), np.uint8), np.array([[4, 4, 30, 40.]]),
        ...     np.array([1]), classes=('cat', 'dog'), scores=np.array([0.9]))
        >>> picture.shape
        (640, 480, 3)
    """
    _check_instances(image, boxes, labels, len(classes))
    palette = palette or class_palette(len(classes))
    height, width = image.shape[:2]
    scale = picture_scale(height, width, side=side, shrink=shrink)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    canvas = cv2.resize(image, size, interpolation=how)
    order = np.arange(len(boxes)) if scores is None else np.argsort(-scores)
    colors = [palette[labels[index]] for index in order]
    limit = np.array([size[0] - 1, size[1] - 1] * 2)
    boxes = (boxes[order] * scale).clip(0, limit)
    texts = [classes[labels[index]] for index in order]
    if scores is not None:
        texts = [
            f'{text} {scores[index]:.2f}' for text, index in zip(texts, order)
        ]
    if masks is not None:
        _draw_masks(canvas, masks[order], colors)
    _draw_boxes(canvas, boxes, colors)
    return draw_labels(canvas, boxes, texts, colors)


def write_picture(path: str | Path, picture: np.ndarray) -> None:
    """Write a picture whole or not at all; an older file is replaced.

    Args:
        path: The file, whose suffix chooses the format: ``.png``, ``.jpg``
            or ``.jpeg``. Missing folders are made.
        picture: ``(H, W, 3)``, uint8, red green blue.

    Raises:
        ValueError: If the suffix is another one.
    """
    path = Path(path)
    if path.suffix.lower() not in ('.png', '.jpg', '.jpeg'):
        raise ValueError(f'path must end in .png, .jpg or .jpeg, got {path}')
    with atomic_path(path) as temporary:
        Image.fromarray(picture).save(temporary, quality=95)
