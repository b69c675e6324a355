"""Draw what a model predicts, and the annotation beside it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import matplotlib
import numpy as np
import torch
from mmdet.datasets.transforms import LoadAnnotations
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DATASETS, DefaultScope
from mmengine.structures import BaseDataElement
from torch import nn

from ..checks.config import check_data_paths
from ..models import (
    DepthTaskHead,
    MultiTaskModel,
    SegmentationTaskHead,
    SurfaceNormalTaskHead,
)
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
    tile_sheet,
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


# All tasks of a multi-task model, side by side ------------------------------


@dataclass(frozen=True)
class TaskSample:
    """An image: its file, what the pipeline made of it, what to draw."""

    path: Path
    packed: Mapping[str, Any]
    with_gt: bool


def read_task_samples(
    config: Any, count: int, *, with_gt: bool
) -> list[TaskSample]:
    """Samples of the validation set with their truth, spread over it.

    They are images for :func:`~mmext.apis.infer_images`. ``with_gt``: the
    truth is drawn below the predictions.

    Raises:
        ValueError: If ``count`` is less than one, the config has no
            ``val_dataloader``, or the set has no images.
    """
    dataset, chosen = open_validation_set(config, count)
    jobs = []
    for index in chosen:
        path = dataset.get_data_info(index).get('img_path')
        if path is None:
            raise ValueError(
                f'{type(dataset).__name__} has no images: nothing can be '
                'drawn; evaluate it with tools/test.py'
            )
        jobs.append(TaskSample(Path(path), dataset[index], with_gt))
    return jobs


def without_labels(step: Callable, load: Callable) -> Callable:
    """A step that is left out, and told of, where it looks for labels."""
    told = False

    def run(results: dict) -> dict | None:
        nonlocal told
        try:
            return step(dict(results))
        except (KeyError, FileNotFoundError) as error:
            if not told:
                told = True
                print_log(
                    f'{type(step).__name__} is left out for pictures without '
                    f'labels, as it ends in {type(error).__name__}: {error}',
                    'current',
                    logging.WARNING,
                )
        return results if 'img' in results else load(results)

    return run


def _array(value: Any) -> np.ndarray | None:
    """``(H, W)`` or ``(H, W, 3)`` of pixels, another array as it is."""
    value = getattr(value, 'data', value)
    if not isinstance(value, torch.Tensor):
        return None
    array = value.detach().cpu().numpy()
    if array.ndim == 3:
        array = array[0] if len(array) == 1 else array.transpose(1, 2, 0)
    return array


def task_arrays(
    model: MultiTaskModel, sample: Any, path: Path
) -> dict[str, np.ndarray]:
    """The prediction of each task."""
    arrays = {}
    for task, head in model.heads.items():
        array = _array(sample.get(head.prediction))
        if array.dtype.kind == 'f' and not np.isfinite(array).all():
            raise ValueError(
                f'the prediction of task {task!r} must be finite, got NaN or '
                f'inf for {path}; the weights are broken, use an earlier '
                'checkpoint'
            )
        arrays[task] = array
    return arrays


def draw_tasks(
    model: MultiTaskModel,
    job: TaskSample,
    sample: Any,
    predictions: Mapping[str, np.ndarray],
) -> np.ndarray:
    """A row of predictions, and, if asked for, one of the truth."""
    inputs = job.packed['inputs']
    if inputs.ndim != 3:
        raise ValueError(f'{job.path} is no image of three channels')
    image = inputs.numpy().transpose(1, 2, 0)[..., ::-1].clip(0, 255)
    shown = _enlarge(image.astype(np.uint8))
    truths = dict.fromkeys(model.tasks)
    if job.with_gt:
        truths = {
            task: _array(sample.get(head.target))
            for task, head in model.heads.items()
        }
    rows = []
    for word, arrays in (('prediction', predictions), ('truth', truths)):
        panels, titles = [shown], [job.path.name]
        for task, head in model.heads.items():
            if arrays[task] is None:
                continue
            title = f'{task}: {word}'
            if arrays[task].ndim < 2:
                numbers = np.atleast_1d(arrays[task]).round(3).tolist()
                titles[0] += f', {title} {numbers}'
                continue
            depth = truths[task] if job.with_gt else predictions[task]
            panel = _paint(head, arrays[task], depth, model.dataset_meta)
            panels.append(_enlarge(panel))
            titles.append(title)
        if word == 'prediction' or len(panels) > 1:
            rows.append(side_by_side(panels, titles))
    return tile_sheet(rows, columns=1, gap=4)


def _enlarge(picture: np.ndarray) -> np.ndarray:
    """Enlarge by a whole factor, so that titles have room."""
    factor = max(1, int(picture_scale(*picture.shape[:2], side=320)))
    return picture.repeat(factor, 0).repeat(factor, 1)


def _paint(
    head: nn.Module,
    values: np.ndarray,
    scale_of: np.ndarray,
    meta: Mapping[str, Any],
) -> np.ndarray:
    """Pixels as colours, ``(H, W, 3)`` uint8; grey where there is no truth."""
    if isinstance(head, SegmentationTaskHead):
        palette = class_palette(head.num_classes, meta.get('palette'))
        valid = (values >= 0) & (values < head.num_classes)
        return color_labels(np.where(valid, values, len(palette)), palette)
    if isinstance(head, SurfaceNormalTaskHead):
        colors = ((values + 1) * 127.5).round().clip(0, 255).astype(np.uint8)
        colors[~values.any(-1)] = IGNORED_COLOR
        return colors
    if values.ndim == 3:
        values = np.linalg.norm(values, axis=-1)
        scale_of = values
    is_depth = isinstance(head, DepthTaskHead)
    valid = scale_of[scale_of > 0] if is_depth else scale_of
    low, high = (valid.min(), valid.max()) if valid.size else (0.0, 1.0)
    part = np.clip((values - low) / max(high - low, 1e-6), 0, 1)
    colors = matplotlib.colormaps['viridis'](part, bytes=True)[..., :3].copy()
    if is_depth:
        colors[values <= 0] = IGNORED_COLOR
    return colors
