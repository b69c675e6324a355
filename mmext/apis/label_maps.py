"""Draw the class of each pixel, and put it into files and plain lists."""

from collections.abc import Sequence

import cv2
import numpy as np

from ..utils.draw import (
    IGNORED_COLOR,
    PICTURE_SIDE,
    Color,
    class_palette,
    color_labels,
    font_size,
    picture_scale,
    scaled,
    scaled_labels,
    side_by_side,
    text_size,
    title_bar,
)
from .infer import Segmentation

_TINT = 0.55


def segmentation_to_dict(
    segmentation: Segmentation, classes: Sequence[str]
) -> dict:
    """``shares`` of the pixels, to six digits, in the order of classes.

    Raises:
        ValueError: If a label is not below the number of classes.
    """
    labels = segmentation.label_map
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    if len(counts) > len(classes):
        raise ValueError(
            f'labels must be in [0, {len(classes)}), the number of class '
            f'names, got {len(counts) - 1}; the checkpoint or the config has '
            'the names of other classes'
        )
    shares = counts / max(labels.size, 1)
    return {'shares': [round(float(share), 6) for share in shares]}


def _tinted(
    image: np.ndarray,
    label_map: np.ndarray,
    palette: Sequence[Color],
    side: int | None,
) -> np.ndarray:
    """The image in the colours of its classes, grey where there is none."""
    height, width = image.shape[:2]
    scale = picture_scale(
        height, width, side=side or PICTURE_SIDE, shrink=side is not None
    )
    if scale != 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        image = scaled(image, *size)
        label_map = scaled_labels(label_map, *size)
    colors = color_labels(label_map, palette)
    return cv2.addWeighted(image, 1 - _TINT, colors, _TINT, 0)


def _legend(
    label_maps: Sequence[np.ndarray],
    classes: Sequence[str],
    palette: Sequence[Color],
    shape: tuple[int, ...],
    part: float = 1,
) -> np.ndarray:
    """Names on their colours, largest share of the last map first.

    As many as have room in that part of the height of a picture of ``shape``.
    """
    size = font_size(max(shape))
    counts = [
        np.bincount(labels.ravel(), minlength=len(classes))[: len(classes)]
        for labels in label_maps
    ]
    there = np.flatnonzero(sum(counts))
    lines = []
    for k in there[np.argsort(-counts[-1][there], kind='stable')].tolist():
        share = counts[-1][k] / max(label_maps[-1].size, 1)
        lines.append((f'{classes[k]} {share:.1%}', palette[k]))
    high = title_bar('', 1, size).shape[0]
    room = max(int(shape[0] * part / high), 2)
    if len(lines) > room:
        left = len(lines) - room + 1
        lines[room - 1 :] = [(f'and {left} more', IGNORED_COLOR)]
    wide = max((text_size(text, size)[0] for text, _ in lines), default=1) + 4
    return np.concatenate(
        [title_bar(text, wide, size, color) for text, color in lines]
    )


def draw_segmentation(
    segmentation: Segmentation,
    classes: Sequence[str],
    *,
    palette: Sequence[Sequence[int]] | str | None = None,
    side: int | None = None,
    truth: np.ndarray | None = None,
) -> np.ndarray:
    """Draw the classes of pixels over the image, and a legend beside it.

    Args:
        segmentation: Image and classes.
        classes: Names of the classes.
        palette: Their colours; one for each class, or none are used.
        side: Bound of the longer side of the image in pixels; without it,
            small images are enlarged.
        truth: ``(H, W)``, unsigned integers: the annotation, drawn on the
            left. What is no class is grey.
    """
    colors = class_palette(len(classes), palette)
    maps = [segmentation.label_map]
    titles = [segmentation.path.name, 'classes']
    if truth is not None:
        maps.insert(0, truth)
        titles = [f'{titles[0]}, ground truth', 'prediction', 'classes']
    panels = [_tinted(segmentation.image, m, colors, side) for m in maps]
    return side_by_side(
        [*panels, _legend(maps, classes, colors, panels[0].shape)], titles
    )


def draw_segmented_frame(
    segmentation: Segmentation,
    classes: Sequence[str],
    *,
    palette: Sequence[Sequence[int]] | str | None = None,
) -> np.ndarray:
    """As :func:`draw_segmentation`, at its size, the legend in a corner."""
    colors = class_palette(len(classes), palette)
    frame, label_map = segmentation.image, segmentation.label_map
    frame = _tinted(frame, label_map, colors, max(frame.shape))
    legend = _legend([label_map], classes, colors, frame.shape, part=0.5)
    legend = legend[: frame.shape[0], : frame.shape[1]]
    frame[: legend.shape[0], : legend.shape[1]] = legend
    return frame
