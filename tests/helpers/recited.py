"""Models that say what they were told to, and data for them.

Predictions are given by the name of the picture, so the figures of a test
through the tool are known beforehand.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import InstanceData, PixelData
from torch import nn

SIZE = (120, 90)
DET_CONFIG = """
default_scope = 'mmdet'
model = dict(type='mmengine.RecitingDetector', told={told!r})
test_dataloader = dict(
    batch_size=2,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        metainfo=dict(classes={classes!r}),
        data_root={root!r},
        ann_file='truth.json',
        data_prefix=dict(img='images/'),
        test_mode=True,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale_factor=1.0, keep_ratio=True),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='PackDetInputs', meta_keys=('img_id', 'img_path',
                'ori_shape', 'img_shape', 'scale_factor')),
        ]))
test_cfg = dict()
test_evaluator = {evaluator}
"""

COCO = """dict(
    type='CocoMetric', ann_file={root!r} + '/truth.json', classwise=True)"""
SEG_CONFIG = """
default_scope = 'mmseg'
model = dict(type='mmengine.RecitingSegmentor')
test_dataloader = dict(
    batch_size=2,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=dict(classes={classes!r}),
        data_root={root!r},
        data_prefix=dict(img_path='images', seg_map_path='maps'),
        img_suffix='.png',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ]))
test_cfg = dict()
test_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU', 'mFscore'])
"""

Rows = Sequence[tuple]
"""Label, x1, y1, x2, y2, and of predictions the score."""


@MODELS.register_module(force=True)
class RecitingDetector(BaseModel):
    """Predicts, for a picture of that name, the rows of ``told``."""

    def __init__(self, told: Mapping[str, Rows]):
        super().__init__()
        self.told = told
        self.unit = nn.Parameter(torch.ones(1))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return [self._recite(sample) for sample in data_samples]

    def _recite(self, sample):
        rows = self.told.get(Path(sample.img_path).name, ())
        table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
        sample.pred_instances = InstanceData(
            labels=table[:, 0].long(),
            bboxes=table[:, 1:5],
            scores=table[:, 5] * self.unit,
        )
        return sample


@MODELS.register_module(force=True)
class RecitingSegmentor(BaseModel):
    """Predicts the map of the file beside the truth, ``*.told.png``."""

    def __init__(self):
        super().__init__()
        self.unit = nn.Parameter(torch.ones(1))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        for sample in data_samples:
            path = Path(sample.seg_map_path).with_suffix('.told.png')
            told = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
            sample.pred_sem_seg = PixelData(
                data=torch.from_numpy(told.astype(np.int64))[None]
            )
        return data_samples


def write_checkpoint(folder: Path) -> Path:
    """Weights of both models."""
    path = folder / 'recited.pth'
    torch.save({'state_dict': {'unit': torch.ones(1)}}, path)
    return path


def write_detection(
    folder: Path,
    truth: Mapping[str, Rows],
    told: Mapping[str, Rows],
    classes: Sequence[str],
    evaluator: str = COCO,
) -> Path:
    """Grey pictures of ``SIZE``, their annotation and a config."""
    images, annotations = [], []
    for name, rows in truth.items():
        picture = np.full((*SIZE[::-1], 3), 90 + 10 * len(images), np.uint8)
        (folder / 'images').mkdir(exist_ok=True)
        assert cv2.imwrite(str(folder / 'images' / name), picture)
        images.append(
            {
                'id': 7 + len(images),
                'file_name': name,
                'width': SIZE[0],
                'height': SIZE[1],
            }
        )
        for label, x1, y1, x2, y2 in rows:
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': images[-1]['id'],
                    'category_id': 3 * label + 2,
                    'bbox': [x1, y1, x2 - x1, y2 - y1],
                    # An outline of two thirds, as those of a polygon.
                    'area': (x2 - x1) * (y2 - y1) * 2 / 3,
                    'iscrowd': 0,
                }
            )
    content = {
        'images': images,
        'annotations': annotations,
        'categories': [
            {'id': 3 * label + 2, 'name': name}
            for label, name in enumerate(classes)
        ],
    }
    (folder / 'truth.json').write_text(json.dumps(content))
    config = folder / 'recited.py'
    config.write_text(
        DET_CONFIG.format(
            told={name: list(rows) for name, rows in told.items()},
            classes=tuple(classes),
            root=folder.as_posix(),
            evaluator=evaluator.format(root=folder.as_posix()),
        )
    )
    return config


def write_segmentation(
    folder: Path,
    maps: Mapping[str, tuple[np.ndarray, np.ndarray]],
    classes: Sequence[str],
) -> Path:
    """Grey pictures, the maps ``(H, W)`` of truth and model, and a config."""
    for name in ('images', 'maps'):
        (folder / name).mkdir()
    for name, (truth, told) in maps.items():
        picture = np.full((*truth.shape, 3), 90, np.uint8)
        assert cv2.imwrite(str(folder / f'images/{name}.png'), picture)
        assert cv2.imwrite(str(folder / f'maps/{name}.png'), truth)
        assert cv2.imwrite(str(folder / f'maps/{name}.told.png'), told)
    # BaseSegDataset lists all maps of the folder unless it is told which.
    config = folder / 'recited.py'
    config.write_text(
        SEG_CONFIG.format(classes=tuple(classes), root=folder.as_posix())
    )
    return config
