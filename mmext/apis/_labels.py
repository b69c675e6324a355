"""Text on pictures: names of objects that cover each other little."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

__all__ = [
    'Color',
    'draw_labels',
    'font_size',
    'ink_on',
    'text_size',
    'title_bar',
]

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
    return int(np.ceil(font.getlength(text))), ascent + descent


def _shorten(text: str, size: int, width: int) -> str:
    """The text, or its beginning and an ellipsis, within ``width`` pixels."""
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


def _overlap(one: np.ndarray, others: Sequence[np.ndarray]) -> float:
    """Area of a rectangle that others cover, counted once for each."""
    if not others:
        return 0.0
    other = np.stack(others)
    low = np.maximum(one[:2], other[:, :2])
    high = np.minimum(one[2:], other[:, 2:])
    return float((high - low).clip(min=0).prod(axis=1).sum())


def _place_label(
    box: np.ndarray,
    size: tuple[int, int],
    canvas: tuple[int, int],
    taken: Sequence[np.ndarray],
) -> np.ndarray:
    """Where a label covers least of the other labels, inside the picture."""
    (width, height), (canvas_width, canvas_height) = size, canvas
    x1, y1, x2, y2 = box
    corners = [
        (x1, y1 - height),
        (x1, y2),
        (x2 - width, y1 - height),
        (x1, y1),
        (x1, y2 - height),
        (x2 - width, y2),
    ]
    # Many boxes in one place: their names pile up above and below it.
    for line in range(1, _MAX_PILE):
        corners += [
            (x1, y1 - (line + 1) * height),
            (x1, y2 + line * height),
            (x1, y1 + line * height),
        ]
    # A picture lower than the line has room nowhere; then it is cut off.
    room = max(canvas_height - height, 0)
    fitting = [(x, y) for x, y in corners if 0 <= y <= room]
    rects = []
    for x, y in fitting or [(x1, min(max(y1, 0), room))]:
        x = min(max(x, 0), max(canvas_width - width, 0))
        rects.append(np.array([x, y, x + width, y + height]))
    return min(rects, key=lambda rect: _overlap(rect, taken))


def draw_labels(
    canvas: np.ndarray,
    boxes: np.ndarray,
    texts: Sequence[str],
    colors: Sequence[Color],
) -> np.ndarray:
    """Write names on filled rectangles at their boxes.

    The first box chooses its place first and lies on top. A text wider than
    the picture ends in an ellipsis.

    Args:
        canvas: ``(H, W, 3)``, uint8. Not changed.
        boxes: ``(N, 4)``, x1 y1 x2 y2 in pixels of the canvas.
        texts: One per box.
        colors: One per box.

    Returns:
        A new picture.
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
        taken.append(_place_label(box, label, (width, height), taken))
        shown.append(text)
    picture = Image.fromarray(canvas)
    pen = ImageDraw.Draw(picture)
    for rect, text, color in reversed(list(zip(taken, shown, colors))):
        x, y, right, bottom = (round(value) for value in rect.tolist())
        pen.rectangle((x, y, right - 1, bottom - 1), fill=color)
        pen.text((x + pad, y), text, font=_font(size), fill=ink_on(color))
    return np.array(picture)


def title_bar(text: str, width: int, size: int) -> np.ndarray:
    """A strip of paper with a line of text, as wide as told.

    Args:
        text: Shortened with an ellipsis when it is too long.
        width: Of the strip, in pixels.
        size: Of the text, in pixels.

    Returns:
        ``(h, width, 3)``, uint8.
    """
    height = text_size(text, size)[1] + 6
    picture = Image.new('RGB', (width, height), _PAPER)
    ImageDraw.Draw(picture).text(
        (2, 3), _shorten(text, size, width - 4), font=_font(size), fill=_INK
    )
    return np.array(picture)
