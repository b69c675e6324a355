"""Ground truth of a validation set, to be drawn next to predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from ..datasets import check_data_paths
from .draw import class_palette, draw_instances
from .infer import Detections
from .predictions import draw_detections
from .sheets import side_by_side

__all__ = ['GroundTruth', 'draw_comparison', 'read_ground_truth']


@dataclass(frozen=True)
class GroundTruth:
    """The annotation of one image.

    Args:
        path: The image file.
        boxes: ``(N, 4)``, float32, x1 y1 x2 y2 in pixels of the image.
        labels: ``(N,)``, int64, indices of ``classes``.
        classes: The class names of the data set.
    """

    path: Path
    boxes: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]


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
        with DefaultScope.overwrite_default_scope(scope):
            dataset = DATASETS.build(dataset_cfg)
    except ValueError as error:
        # MMEngine's words for an empty set are about numpy arrays.
        raise ValueError(
            'val_dataloader.dataset must be a data set with images, got '
            f'{error}; check its ann_file and its classes'
        ) from error
    chosen = np.linspace(0, len(dataset) - 1, min(count, len(dataset)))
    classes = tuple(dataset.metainfo['classes'])
    truths = []
    for index in chosen.round().astype(int).tolist():
        info = dataset.get_data_info(index)
        kept = [
            item for item in info['instances'] if not item.get('ignore_flag')
        ]
        boxes = np.array([item['bbox'] for item in kept], dtype=np.float32)
        labels = np.array([item['bbox_label'] for item in kept], dtype=int)
        truths.append(
            GroundTruth(
                path=Path(info['img_path']),
                boxes=boxes.reshape(-1, 4),
                labels=labels,
                classes=classes,
            )
        )
    return truths


def draw_comparison(
    found: Detections,
    truth: GroundTruth,
    classes: Sequence[str],
    *,
    palette: Sequence[Sequence[int]] | str | None = None,
    side: int | None = None,
) -> np.ndarray:
    """Draw ground truth on the left and predictions on the right.

    Args:
        found: What was found in the image.
        truth: The annotation of the same image.
        classes: The class names of the model.
        palette: Colours of the model's classes.
        side: Length in pixels of the longer side of each half, see
            :func:`~mmext.apis.predictions.draw_detections`.

    Returns:
        ``(H, W, 3)``, uint8, red green blue.

    Raises:
        ValueError: If the annotation is of another image, or a label has no
            class name.
    """
    if truth.path != found.path:
        raise ValueError(
            f'truth must be of the same image as found, got {truth.path} and '
            f'{found.path}'
        )
    size = {} if side is None else {'side': side, 'shrink': True}
    left = draw_instances(
        found.image,
        truth.boxes,
        truth.labels,
        classes=truth.classes,
        palette=class_palette(len(truth.classes), palette),
        **size,
    )
    right = draw_detections(found, classes, palette=palette, side=side)
    titles = [
        f'{found.path.name}, ground truth: {len(truth.boxes)}',
        f'prediction: {len(found.boxes)}',
    ]
    return side_by_side([left, right], titles)
