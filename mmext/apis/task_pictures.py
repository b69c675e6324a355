"""Draw all tasks of a multi-task model side by side."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from mmengine.logging import print_log
from torch import nn

from ..models import (
    DepthTaskHead,
    MultiTaskModel,
    SegmentationTaskHead,
    SurfaceNormalTaskHead,
)
from ..utils.draw import (
    IGNORED_COLOR,
    class_palette,
    color_labels,
    picture_scale,
    side_by_side,
    tile_sheet,
)
from .drawing import open_validation_set


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
