"""Draw what a model predicts, and the annotation beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmdet.datasets.transforms import LoadAnnotations
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from mmengine.structures import BaseDataElement

from ..checks.config import check_data_paths
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
from ..utils.safe_load import careful_readers


@dataclass(frozen=True)
class GroundTruth:
    """The annotation of one image.

    Args:
        path: The image file.
        boxes: ``(N, 4)``, float32, x1 y1 x2 y2 in pixels of the image.
        labels: ``(N,)``, int64, indices of ``classes``.
        classes: The class names of the data set.
        label_map: ``(H, W)``, uint8 or uint16, of a data set that labels
            pixels.
        segmentations: Polygons or run lengths of each box, as the data set
            has them; None for a box without.
    """

    path: Path
    boxes: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    label_map: np.ndarray | None = None
    segmentations: tuple = ()

    def masks(self, height: int, width: int) -> np.ndarray | None:
        """``(N, H, W)`` bool in an image of that size; None without any."""
        if not self.segmentations or None in self.segmentations:
            return None
        load = LoadAnnotations(
            with_bbox=False, with_label=False, with_mask=True
        )
        loaded = load(
            {
                # Either is read, as mmdet's version has it.
                'ori_shape': (height, width),
                'height': height,
                'width': width,
                'instances': [
                    {'mask': segmentation, 'ignore_flag': 0}
                    for segmentation in self.segmentations
                ],
            }
        )
        return loaded['gt_masks'].masks.astype(bool)


def open_validation_set(config: Config, count: int) -> tuple[Any, list[int]]:
    """The validation set of a config, and ``count`` indices spread over it."""
    if count < 1:
        raise ValueError(f'count must be at least 1, got {count}')
    dataset_cfg = (config.get('val_dataloader') or {}).get('dataset')
    if not dataset_cfg:
        raise ValueError(
            'config must have val_dataloader.dataset, got '
            f'{sorted(config)}; name image files instead'
        )
    check_data_paths(config, ['val'])
    scope = config.get('default_scope', 'mmdet')
    try:
        with DefaultScope.overwrite_default_scope(scope), careful_readers():
            dataset = DATASETS.build(dataset_cfg)
    except ValueError as error:
        # MMEngine's words for an empty set are about numpy arrays.
        raise ValueError(
            'val_dataloader.dataset must be a data set with images, got '
            f'{error}; check its ann_file and its classes'
        ) from error
    chosen = np.linspace(0, len(dataset) - 1, min(count, len(dataset)))
    return dataset, chosen.round().astype(int).tolist()


def read_ground_truth(config: Config, count: int) -> list[GroundTruth]:
    """Take images of the validation set, spread evenly over it.

    The same config gives the same images. Boxes that the data set says to
    ignore (crowds, difficult ones) are left out, as the evaluation does.

    Args:
        config: A config with a ``val_dataloader``.
        count: How many images; all of them if the set has fewer.

    Returns:
        The annotations, in the order of the data set.

    Raises:
        ValueError: If ``count`` is less than one, the config has no
            ``val_dataloader``, or the set is empty or cannot be built.
        FileNotFoundError: If the data is not there.
    """
    dataset, chosen = open_validation_set(config, count)
    classes = tuple(dataset.metainfo['classes'])
    truths = []
    for index in chosen:
        info = dataset.get_data_info(index)
        kept = [
            item
            for item in info.get('instances', ())
            if not item.get('ignore_flag')
        ]
        boxes = np.array([item['bbox'] for item in kept], dtype=np.float32)
        labels = np.array([item['bbox_label'] for item in kept], dtype=int)
        label_map = None
        if 'instances' not in info and info.get('seg_map_path'):
            # As the pipeline of the data set loads it.
            sample = dataset[index]['data_samples']
            if 'gt_sem_seg' in sample:
                pixels = sample.gt_sem_seg.data.squeeze(0).numpy()
                label_map = pixels.astype(np.uint16)
        truths.append(
            GroundTruth(
                path=Path(info['img_path']),
                boxes=boxes.reshape(-1, 4),
                labels=labels,
                classes=classes,
                label_map=label_map,
                segmentations=tuple(item.get('mask') for item in kept),
            )
        )
    return truths


_TINT = 0.55


def draw_prediction(
    prediction: BaseDataElement,
    *,
    truth: GroundTruth | None = None,
    side: int | None = None,
) -> np.ndarray:
    """Draw objects on the image, or the classes of its pixels.

    Args:
        prediction: What :func:`~mmext.apis.infer_images` gave. Its palette
            has a colour for each class, or is not used.
        truth: The annotation, drawn on the left. Pixels of no class are grey.
        side: Bound of the longer side of the image in pixels; without it,
            small images are enlarged.

    Raises:
        ValueError: If a label is not below the number of classes.
    """
    if 'picture' in prediction:
        return prediction.picture
    if 'pred_sem_seg' in prediction:
        return _draw_classes(prediction, truth, side)
    picture = _draw_objects(prediction, prediction, side)
    if truth is None:
        return picture
    left = _draw_objects(prediction, truth, side)
    titles = [
        f'{prediction.path.name}, ground truth: {len(truth.boxes)}',
        f'prediction: {len(prediction.boxes)}',
    ]
    return side_by_side([left, picture], titles)


def _draw_objects(
    prediction: BaseDataElement,
    objects: BaseDataElement | GroundTruth,
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
        classes=objects.classes,
        scores=getattr(objects, 'scores', None),
        masks=masks,
        palette=class_palette(len(objects.classes), prediction.palette),
        **({} if side is None else {'side': side, 'shrink': True}),
    )


def _draw_classes(
    prediction: BaseDataElement,
    truth: GroundTruth | None,
    side: int | None,
) -> np.ndarray:
    """The classes of pixels over the image, and a legend beside it."""
    classes = prediction.classes
    colors = class_palette(len(classes), prediction.palette)
    maps = [prediction.label_map]
    titles = [prediction.path.name, 'classes']
    if truth is not None and truth.label_map is not None:
        maps.insert(0, truth.label_map)
        titles = [f'{titles[0]}, ground truth', 'prediction', 'classes']
    panels = [_tinted(prediction.image, m, colors, side) for m in maps]
    return side_by_side(
        [*panels, _legend(maps, classes, colors, panels[0].shape)], titles
    )


def draw_frame(prediction: BaseDataElement) -> np.ndarray:
    """As :func:`draw_prediction`, at the size of the image.

    The legend of a segmentation is in a corner.
    """
    side = max(prediction.image.shape[:2])
    if 'pred_sem_seg' not in prediction:
        return draw_prediction(prediction, side=side)
    classes = prediction.classes
    colors = class_palette(len(classes), prediction.palette)
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
