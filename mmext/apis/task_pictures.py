"""Run a multi-task model on images, and draw all tasks side by side."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.logging import print_log
from mmengine.registry import TRANSFORMS, DefaultScope
from mmengine.structures import BaseDataElement
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
    write_picture,
)
from ..utils.files import atomic_path
from .detector import inference_pipeline
from .drawing import open_validation_set
from .infer import Result, UnreadableImageError, add_facts, prepare_image
from .prediction_files import (
    InferReport,
    choose_outputs,
    refuse_videos,
    track,
    write_json,
)


@dataclass(frozen=True)
class _Job:
    """An image: its file, and what the pipeline made of it."""

    path: Path
    packed: Mapping[str, Any]


def read_task_samples(config: Any, count: int) -> list[_Job]:
    """Samples of the validation set with their truth, spread over it.

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
        jobs.append(_Job(Path(path), dataset[index]))
    return jobs


class TaskPredictions(Result, BaseDataElement):
    """What a multi-task model predicts for one image.

    Attributes:
        picture: ``(H, W, 3)``, uint8, red green blue: the image beside the
            prediction of each task.
        arrays: Task -> prediction, as :func:`infer_tasks_to_folder` writes it.
    """

    picture: np.ndarray
    arrays: dict[str, np.ndarray]


def _read_files(
    config: Any,
    images: Iterable[str | Path],
    on_unreadable: Callable[[Path, UnreadableImageError], None] | None,
) -> Iterator[_Job]:
    """Images that are named; without truth."""
    with DefaultScope.overwrite_default_scope(config.default_scope):
        load = TRANSFORMS.build(
            {'type': 'LoadImageFromFile', 'to_float32': True}
        )
        steps = [
            _without_labels(TRANSFORMS.build(step), load)
            for step in inference_pipeline(config)
        ]
    for index, item in enumerate(images):
        if not isinstance(item, str | Path):
            raise TypeError(
                'images must be files for a multi-task model, got '
                f'{type(item).__name__}'
            )
        path = Path(item)
        try:
            packed, _ = prepare_image(path, index, steps)
        except UnreadableImageError as error:
            if on_unreadable is None:
                raise
            on_unreadable(path, error)
            continue
        yield _Job(path, packed)


def _without_labels(step: Callable, load: Callable) -> Callable:
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


def infer_tasks(
    model: MultiTaskModel,
    images: Iterable[str | Path],
    *,
    batch_size: int = 1,
    on_unreadable: Callable[[Path, UnreadableImageError], None] | None = None,
    samples: Sequence[_Job] = (),
    with_gt: bool = False,
) -> Iterator[TaskPredictions]:
    """Predict all tasks; see :func:`infer_tasks_to_folder`."""
    jobs = iter(samples or _read_files(model.cfg, images, on_unreadable))
    while batch := list(islice(jobs, batch_size)):
        data = pseudo_collate([dict(job.packed) for job in batch])
        with torch.no_grad():
            outputs = model.test_step(data)
        for job, sample in zip(batch, outputs):
            panels = _panels(model, job, sample, with_gt)
            result = TaskPredictions(
                picture=tile_sheet(panels, columns=1, gap=4),
                arrays=_arrays(model, sample, job.path),
            )
            add_facts(result, job.path, model)
            yield result


def infer_tasks_to_folder(
    model: MultiTaskModel,
    images: Sequence[Path],
    out_dir: str | Path,
    *,
    json_path: str | Path | None = None,
    batch_size: int = 1,
    samples: Sequence[_Job] = (),
    with_gt: bool = False,
    sheet: bool = False,
) -> InferReport:
    """Predict all tasks, draw them and write them down.

    For each image there is a picture, the image beside the prediction of each
    task, and a ``.npz`` file of the same name with the predictions as arrays:
    classes ``(H, W)`` integer, depth ``(H, W)`` float32, normals ``(H, W, 3)``
    float32, other outputs as they are; ``predictions.json`` lists them.

    Args:
        model: From :func:`~mmext.apis.load_detector`.
        images: Image files: ``.npy`` as in NYUv2's layout, or pictures. A
            step of the test pipeline that ends in a KeyError or
            FileNotFoundError for a picture without labels is left out, with
            a warning; one that also loads the picture is replaced.
        out_dir: Folder for the pictures.
        json_path: Where the list goes; by default into ``out_dir``.
        batch_size: How many images go through the model at once.
        samples: From :func:`read_task_samples`, in place of ``images``.
        with_gt: Draw the truth of the samples below their predictions.
        sheet: Whether all pictures are also put on one
            ``contact_sheet.png``.

    Returns:
        What was written.

    Raises:
        ValueError: If the prediction of a task is not finite, or a file to
            be written is one of the images.
    """
    failed: list[tuple[Path, str]] = []
    paths = [job.path for job in samples] or list(images)
    refuse_videos(model, paths)
    outputs = choose_outputs(paths, out_dir, json_path, sheet)
    predictions = infer_tasks(
        model,
        images,
        batch_size=batch_size,
        on_unreadable=lambda path, error: failed.append((path, str(error))),
        samples=samples,
        with_gt=with_gt,
    )
    rows, tiles = [], []
    for prediction in track(predictions, len(paths), 'images'):
        target = outputs.pictures[prediction.path]
        write_picture(target, prediction.picture)
        arrays = target.with_suffix('.npz')
        with atomic_path(arrays) as temporary, open(temporary, 'wb') as file:
            np.savez_compressed(file, **prediction.arrays)
        rows.append(
            {
                'image': str(prediction.path),
                'picture': str(target),
                'arrays': str(arrays),
            }
        )
        if sheet:
            tiles.append(prediction.picture)
    content = {
        'tasks': list(model.tasks),
        'images': rows,
        'failed': [{'image': str(p), 'reason': why} for p, why in failed],
    }
    write_json(outputs.json, content)
    if tiles:
        write_picture(outputs.sheet, tile_sheet(tiles, columns=1))
    return InferReport(
        pictures=tuple(Path(row['picture']) for row in rows),
        num_objects=None,
        json_path=outputs.json,
        sheet=outputs.sheet if tiles else None,
        failed=tuple(failed),
    )


def _array(value: Any) -> np.ndarray | None:
    """``(H, W)`` or ``(H, W, 3)`` of pixels, another array as it is."""
    value = getattr(value, 'data', value)
    if not isinstance(value, torch.Tensor):
        return None
    array = value.detach().cpu().numpy()
    if array.ndim == 3:
        array = array[0] if len(array) == 1 else array.transpose(1, 2, 0)
    return array


def _arrays(
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


def _panels(
    model: MultiTaskModel, job: _Job, sample: Any, with_gt: bool
) -> list[np.ndarray]:
    """Rows of a picture: predictions, and, if asked for, the truth."""
    inputs = job.packed['inputs']
    if inputs.ndim != 3:
        raise UnreadableImageError(f'{job.path} is no image of three channels')
    image = inputs.numpy().transpose(1, 2, 0)[..., ::-1].clip(0, 255)
    shown = _enlarge(image.astype(np.uint8))
    truths = dict.fromkeys(model.tasks)
    if with_gt:
        truths = {
            task: _array(sample.get(head.target))
            for task, head in model.heads.items()
        }
    predictions = _arrays(model, sample, job.path)
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
            depth = truths[task] if with_gt else predictions[task]
            panel = _paint(head, arrays[task], depth, model.dataset_meta)
            panels.append(_enlarge(panel))
            titles.append(title)
        if word == 'prediction' or len(panels) > 1:
            rows.append(side_by_side(panels, titles))
    return rows


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
