"""Draw what a model predicts, and the annotation beside it."""

from collections.abc import Sequence

import cv2
import numpy as np

from ..utils.draw import (
    IGNORED_COLOR,
    PICTURE_SIDE,
    Color,
    class_palette,
    color_labels,
    draw_instances,
    font_size,
    picture_scale,
    scaled,
    scaled_labels,
    side_by_side,
    text_size,
    title_bar,
)
from .ground_truth import GroundTruth
from .infer import Detections, Prediction, Reconstruction, Segmentation

_TINT = 0.55


def draw_prediction(
    prediction: Prediction,
    classes: Sequence[str],
    *,
    palette: Sequence[Sequence[int]] | str | None = None,
    truth: GroundTruth | None = None,
    side: int | None = None,
) -> np.ndarray:
    """Draw objects on the image, or the classes of its pixels.

    Args:
        prediction: What :func:`~mmext.apis.infer_images` gave.
        classes: Names of the classes.
        palette: Their colours; one for each class, or none are used.
        truth: The annotation, drawn on the left. Pixels of no class are grey.
        side: Bound of the longer side of the image in pixels; without it,
            small images are enlarged.

    Raises:
        ValueError: If a label is not below the number of classes.
    """
    if isinstance(prediction, Reconstruction):
        return prediction.picture
    if isinstance(prediction, Segmentation):
        return _draw_classes(prediction, classes, palette, truth, side)
    picture = _draw_objects(prediction, prediction, classes, palette, side)
    if truth is None:
        return picture
    left = _draw_objects(prediction, truth, truth.classes, palette, side)
    titles = [
        f'{prediction.path.name}, ground truth: {len(truth.boxes)}',
        f'prediction: {len(prediction.boxes)}',
    ]
    return side_by_side([left, picture], titles)


def _draw_objects(
    prediction: Detections,
    objects: Detections | GroundTruth,
    classes: Sequence[str],
    palette: Sequence[Sequence[int]] | str | None,
    side: int | None,
) -> np.ndarray:
    """Predicted or annotated objects on the image of a prediction."""
    masks = prediction.masks
    if masks is not None and isinstance(objects, GroundTruth):
        masks = objects.masks(*prediction.image.shape[:2])
    return draw_instances(
        prediction.image,
        objects.boxes,
        objects.labels,
        classes=classes,
        scores=getattr(objects, 'scores', None),
        masks=masks,
        palette=class_palette(len(classes), palette),
        **({} if side is None else {'side': side, 'shrink': True}),
    )


def _draw_classes(
    prediction: Segmentation,
    classes: Sequence[str],
    palette: Sequence[Sequence[int]] | str | None,
    truth: GroundTruth | None,
    side: int | None,
) -> np.ndarray:
    """The classes of pixels over the image, and a legend beside it."""
    colors = class_palette(len(classes), palette)
    maps = [prediction.label_map]
    titles = [prediction.path.name, 'classes']
    if truth is not None and truth.label_map is not None:
        maps.insert(0, truth.label_map)
        titles = [f'{titles[0]}, ground truth', 'prediction', 'classes']
    panels = [_tinted(prediction.image, m, colors, side) for m in maps]
    return side_by_side(
        [*panels, _legend(maps, classes, colors, panels[0].shape)], titles
    )


def draw_frame(
    prediction: Detections | Segmentation,
    classes: Sequence[str],
    *,
    palette: Sequence[Sequence[int]] | str | None = None,
) -> np.ndarray:
    """As :func:`draw_prediction`, at the size of the image.

    The legend of a segmentation is in a corner.
    """
    side = max(prediction.image.shape[:2])
    if isinstance(prediction, Detections):
        return draw_prediction(prediction, classes, palette=palette, side=side)
    colors = class_palette(len(classes), palette)
    label_map = prediction.label_map
    frame = _tinted(prediction.image, label_map, colors, side)
    legend = _legend([label_map], classes, colors, frame.shape, part=0.5)
    legend = legend[: frame.shape[0], : frame.shape[1]]
    frame[: legend.shape[0], : legend.shape[1]] = legend
    return frame


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
