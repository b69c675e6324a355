"""Draw boxes, masks and their names on images; no window system is needed.

All pictures are ``(H, W, 3)`` uint8 arrays in the order red, green, blue, and
all boxes ``(N, 4)`` as x1 y1 x2 y2 in pixels of the image.
"""

import colorsys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .files import atomic_path
from .printing import printable_name

Color = tuple[int, int, int]

_PAPER = (250, 250, 250)
_INK = (30, 30, 30)
_MAX_PILE = 6


@lru_cache(maxsize=64)
def _font(size: int) -> ImageFont.FreeTypeFont:
    # matplotlib, which mmengine requires, brings this font along.
    folder = Path(matplotlib.get_data_path(), 'fonts', 'ttf')
    return ImageFont.truetype(str(folder / 'DejaVuSans.ttf'), size)


def font_size(side: int) -> int:
    """Height of text in pixels that suits a picture of that longer side."""
    return int(np.clip(side / 46, 11, 26))


def text_size(text: str, size: int) -> tuple[int, int]:
    """Width of a text and height of its line, in pixels."""
    font = _font(size)
    ascent, descent = font.getmetrics()
    length = font.getlength(printable_name(text))
    return int(np.ceil(length)), ascent + descent


def _shorten(text: str, size: int, width: int) -> str:
    """The text, or its beginning and an ellipsis, within ``width`` pixels.

    The result is printable: Pillow fails at some control characters.
    """
    text = printable_name(text)
    if text_size(text, size)[0] <= width:
        return text
    while text and text_size(text + '…', size)[0] > width:
        text = text[:-1]
    return text + '…'


def ink_on(color: Color) -> Color:
    """Black or white, whichever is easier to read on ``color``."""
    red, green, blue = color
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    return (0, 0, 0) if light > 130 else (255, 255, 255)


def _label_box(
    box: np.ndarray,
    size: tuple[int, int],
    canvas: tuple[int, int],
    taken: Sequence[np.ndarray],
) -> np.ndarray:
    """Where a label covers least of the other labels, inside the picture."""
    (width, height), (canvas_width, canvas_height) = size, canvas
    x1, y1, x2, y2 = box
    corners = [
        (x, y)
        for y in (y1 - height, y2, y1, y2 - height)
        for x in (x1, x2 - width)
    ]
    # Many boxes at one position: their names pile up above and below it.
    for line in range(1, _MAX_PILE):
        for y in (y1 - (line + 1) * height, y2 + line * height):
            corners.append((x1, y))
        corners.append((x1, y1 + line * height))
    # A picture lower than the line has room nowhere; then it is cut off.
    room = max(canvas_height - height, 0)
    fitting = [(x, y) for x, y in corners if 0 <= y <= room]
    others = np.reshape(taken, (-1, 4))
    rects, covered = [], []
    for x, y in fitting or [(x1, min(max(y1, 0), room))]:
        x = min(max(x, 0), max(canvas_width - width, 0))
        rect = np.array([x, y, x + width, y + height])
        low = np.maximum(rect[:2], others[:, :2])
        high = np.minimum(rect[2:], others[:, 2:])
        rects.append(rect)
        covered.append((high - low).clip(min=0).prod(axis=1).sum())
    return rects[int(np.argmin(covered))]


def draw_labels(
    canvas: np.ndarray,
    boxes: np.ndarray,
    texts: Sequence[str],
    colors: Sequence[Color],
) -> np.ndarray:
    """Write names on filled rectangles at their boxes, on a copy.

    The first box chooses its position first and lies on top. A text wider
    than the picture ends in an ellipsis.
    """
    height, width = canvas.shape[:2]
    size = font_size(max(height, width))
    pad = max(2, size // 6)
    taken: list[np.ndarray] = []
    shown = []
    for box, text in zip(boxes, texts):
        text = _shorten(text, size, width - 2 * pad)
        text_width, text_height = text_size(text, size)
        label = (text_width + 2 * pad, text_height)
        taken.append(_label_box(box, label, (width, height), taken))
        shown.append(text)
    picture = Image.fromarray(canvas)
    pen = ImageDraw.Draw(picture)
    for rect, text, color in reversed(list(zip(taken, shown, colors))):
        x, y, right, bottom = (round(value) for value in rect.tolist())
        pen.rectangle((x, y, right - 1, bottom - 1), fill=color)
        pen.text((x + pad, y), text, font=_font(size), fill=ink_on(color))
    return np.array(picture)


def title_bar(
    text: str, width: int, size: int, color: Color | None = None
) -> np.ndarray:
    """A strip of paper or of a colour with a text ``size`` pixels high."""
    height = text_size(text, size)[1] + 6
    picture = Image.new('RGB', (width, height), color or _PAPER)
    ink = ink_on(color) if color else _INK
    ImageDraw.Draw(picture).text(
        (2, 3), _shorten(text, size, width - 4), font=_font(size), fill=ink
    )
    return np.array(picture)


IGNORED_COLOR = (120, 120, 120)
"""Colour of pixels that are of no class."""

PICTURE_SIDE = 640
"""Smaller pictures are enlarged, by a whole factor, up to this length."""

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
    """Give every class a colour that differs from those of its neighbours.

    ``given`` are the colours of a data set, used when there is one per class:
    any other number belongs to the classes of a base data set, and a name
    such as ``'random'`` is no colour.
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
    """Factor by which an image is enlarged before anything is drawn on it.

    The largest whole factor that keeps the longer side within ``side`` pixels;
    1 for larger images, or, with ``shrink``, the fraction that fits.
    """
    longer = max(height, width, 1)
    if longer > side:
        return side / longer if shrink else 1.0
    return float(side // longer)


def scaled(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """An image in another size: means where it shrinks."""
    shrinks = width < image.shape[1] or height < image.shape[0]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return cv2.resize(image, (width, height), interpolation=how)


def scaled_labels(labels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Labels in another size, by the nearest pixel."""
    return cv2.resize(labels, (width, height), interpolation=cv2.INTER_NEAREST)


def color_labels(
    labels: np.ndarray,
    palette: Sequence[Color],
    none: Color = IGNORED_COLOR,
) -> np.ndarray:
    """Colours of labels ``(H, W)``; ``none`` where there is no such class."""
    colors = np.array([*palette, none], np.uint8)
    return colors[np.minimum(labels.astype(np.uint16), len(palette))]


def draw_boxes(
    canvas: np.ndarray,
    boxes: np.ndarray,
    colors: Sequence[Color],
    thick: int | None = None,
) -> None:
    """Rectangles with a black or white rim; the first one ends up on top."""
    thick = thick or max(2, round(max(canvas.shape[:2]) / 400))
    for box, color in reversed(list(zip(boxes, colors))):
        x1, y1, x2, y2 = (round(value) for value in box.tolist())
        for width, ink in ((thick + 2, ink_on(color)), (thick, color)):
            cv2.rectangle(canvas, (x1, y1), (x2, y2), ink, width)


def draw_masks(
    canvas: np.ndarray,
    masks: Sequence[np.ndarray],
    colors: Sequence[Color],
    alpha: float = 0.45,
) -> None:
    """Tinted areas with an outline, in place; the first ends up on top.

    A mask ``(H, W)`` that is larger than the picture loses no pixel.
    """
    height, width = canvas.shape[:2]
    for mask, color in reversed(list(zip(masks, colors))):
        shrinks = width < mask.shape[1] or height < mask.shape[0]
        how = cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST
        full = np.where(mask, np.uint16(65535), np.uint16(0))
        inside = cv2.resize(full, (width, height), interpolation=how) > 0
        tint = (1 - alpha) * canvas[inside] + alpha * np.array(color)
        canvas[inside] = tint.round().astype(np.uint8)
        # Of holes, too.
        outline, _ = cv2.findContours(
            inside.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE
        )
        cv2.drawContours(canvas, outline, -1, color, 1)


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
    """Draw objects with their class names and scores, on a copy.

    The image is scaled first, see :func:`picture_scale`, so that lines and
    names stay legible at 64 pixels. Objects of higher score lie on top and get
    the better position for the name. Boxes are in pixels of ``image``; what
    lies outside of it is cut off. ``masks`` are ``(N, H, W)``, bool.
    """
    if not np.isfinite(boxes).all():
        where = int(np.nonzero(~np.isfinite(boxes).all(axis=1))[0][0])
        raise ValueError(
            f'boxes must be finite, got {boxes[where].tolist()} at {where}'
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise ValueError(
            f'labels must be in [0, {len(classes)}), the number of classes, '
            f'got {labels.min()} to {labels.max()}'
        )
    palette = palette or class_palette(len(classes))
    height, width = image.shape[:2]
    scale = picture_scale(height, width, side=side, shrink=shrink)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = scaled(image, *size)
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
        draw_masks(canvas, masks[order], colors)
    draw_boxes(canvas, boxes, colors)
    return draw_labels(canvas, boxes, texts, colors)


def write_picture(path: str | Path, picture: np.ndarray) -> None:
    """Write a .png or .jpg whole or not at all; an older one is replaced.

    Labels ``(H, W)`` of 8 or 16 bits become a .png of one channel.
    """
    path = Path(path)
    if path.suffix.lower() not in ('.png', '.jpg', '.jpeg'):
        raise ValueError(f'path must end in .png, .jpg or .jpeg, got {path}')
    with atomic_path(path) as temporary:
        Image.fromarray(picture).save(temporary, quality=95)


def _paper(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), _PAPER, dtype=np.uint8)


def side_by_side(
    panels: Sequence[np.ndarray], titles: Sequence[str], *, gap: int = 6
) -> np.ndarray:
    """Put pictures next to each other, each under its title."""
    height = max(panel.shape[0] for panel in panels)
    size = font_size(max(max(panel.shape[:2]) for panel in panels))
    columns = []
    for panel, title in zip(panels, titles):
        low, wide = panel.shape[:2]
        bar = title_bar(title, wide, size)
        column = [bar, panel, _paper(height - low, wide)]
        columns += [np.concatenate(column), _paper(len(bar) + height, gap)]
    return np.concatenate(columns[:-1], axis=1)


def tile_sheet(
    tiles: Sequence[np.ndarray], *, columns: int, gap: int = 14
) -> np.ndarray:
    """Put pictures into a grid; a row is as high as its highest tile."""
    columns = min(columns, len(tiles))
    wide = max(tile.shape[1] for tile in tiles)
    sheet = [_paper(gap, columns * (wide + gap) + gap)]
    for start in range(0, len(tiles), columns):
        row = tiles[start : start + columns]
        height = max(tile.shape[0] for tile in row)
        strip = _paper(height + gap, sheet[0].shape[1])
        for index, tile in enumerate(row):
            left = gap + index * (wide + gap)
            strip[: tile.shape[0], left : left + tile.shape[1]] = tile
        sheet.append(strip)
    return np.concatenate(sheet)
