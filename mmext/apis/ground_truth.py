"""Annotations of the validation set, to be drawn beside predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mmdet.datasets.transforms import LoadAnnotations
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from ..checks.config import check_data_paths
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
