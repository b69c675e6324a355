"""Models that say what they were told to, and data for them.

Predictions are given by the name of the picture, so the metrics of a test
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
from mmengine.structures import InstanceData
from torch import nn

SIZE = (120, 90)
DET_CONFIG = """
default_scope = 'mmdet'
model = {model}
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
            {resize},
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='PackDetInputs', meta_keys=('img_id', 'img_path',
                'ori_shape', 'img_shape', 'scale_factor', 'instances')),
        ]))
test_cfg = dict()
test_evaluator = {evaluator}
"""

COCO = """dict(
    type='CocoMetric', ann_file={root!r} + '/truth.json', classwise=True,
    metric='bbox')"""
SEG_CONFIG = """
default_scope = 'mmseg'
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', bgr_to_rgb=True),
    backbone=dict(type='mmengine.Pixels'),
    decode_head=dict(
        type='FCNHead', in_channels=3, channels=3, num_convs=0,
        concat_input=False, num_classes={num}, dropout_ratio=0.0,
        loss_decode=dict(type='CrossEntropyLoss')),
    test_cfg=dict(mode='whole'))
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
COLOURS = np.array(
    [(20, 20, 20), (220, 20, 20), (20, 220, 20), (20, 20, 220)], np.uint8
)

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
class PatchFinder(BaseModel):
    """Finds white patches whose sides are at least 6 pixels of its input."""

    def __init__(self, least=6):
        super().__init__()
        self.least, self.sizes = least, []
        self.unit = nn.Parameter(torch.ones(1))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        self.sizes += [tuple(image.shape[1:]) for image in inputs]
        return [self._find(*pair) for pair in zip(inputs, data_samples)]

    def _find(self, image, sample):
        white = (image.cpu().float().amin(0) > 128).numpy().astype(np.uint8)
        rows = cv2.connectedComponentsWithStats(white)[2][1:, :4]
        rows = torch.from_numpy(rows[(rows[:, 2:] >= self.least).all(1)])
        boxes = torch.cat((rows[:, :2], rows[:, :2] + rows[:, 2:]), 1).float()
        scale = torch.tensor(sample.scale_factor).float().repeat(2)
        sample.pred_instances = InstanceData(
            labels=torch.zeros(len(rows), dtype=torch.long),
            bboxes=boxes / scale,
            scores=torch.full((len(rows),), 0.9) * self.unit.cpu(),
        )
        return sample


@MODELS.register_module(force=True)
class Pixels(nn.Module):
    """A backbone whose map is the picture."""

    def forward(self, image):
        return (image,)


def write_checkpoint(folder: Path, num_colours: int = len(COLOURS)) -> Path:
    """Weights of all models; of the segmentor, the nearest of ``COLOURS``."""
    path = folder / 'recited.pth'
    colours = torch.from_numpy(COLOURS[:num_colours]).float()
    weights = {
        'decode_head.conv_seg.weight': 2 * colours[..., None, None],
        'decode_head.conv_seg.bias': -colours.square().sum(1),
    }
    torch.save({'state_dict': {'unit': torch.ones(1), **weights}}, path)
    return path


def matrix(report: Mapping) -> list[list[int]]:
    """The confusion matrix of a report, with its empty cells."""
    num = len(report['confusion']['classes'])
    counts = np.zeros((num, num), int)
    for row, column, count in report['confusion']['cells']:
        counts[row, column] = count
    return counts.tolist()


def write_detection(
    folder: Path,
    truth: Mapping[str, Rows],
    told: Mapping[str, Rows],
    classes: Sequence[str],
    evaluator: str = COCO,
) -> Path:
    """Grey pictures of ``SIZE``, their annotation and a config."""
    pictures = {
        name: np.full((*SIZE[::-1], 3), 90 + 10 * n % 160, np.uint8)
        for n, name in enumerate(truth)
    }
    rows = {name: list(item) for name, item in told.items()}
    return _write_boxes(
        folder,
        pictures,
        truth,
        model=f"dict(type='mmengine.RecitingDetector', told={rows!r})",
        resize="dict(type='Resize', scale_factor=1.0, keep_ratio=True)",
        classes=tuple(classes),
        evaluator=evaluator,
    )


def write_patches(
    folder: Path, size: tuple[int, int], rows: Rows, scale: tuple[int, int]
) -> Path:
    """One picture with white patches, for a model that finds large ones.

    Args:
        folder: For all files.
        size: Width and height of the picture.
        rows: The patches; all are labelled.
        scale: Width and height of what the model gets.
    """
    picture = np.full((*size[::-1], 3), 60, np.uint8)
    for _, x1, y1, x2, y2 in rows:
        picture[y1:y2, x1:x2] = 255
    return _write_boxes(
        folder,
        {'patches.png': picture},
        {'patches.png': rows},
        model="dict(type='mmengine.PatchFinder')",
        resize=f"dict(type='Resize', scale={scale}, keep_ratio=True)",
        classes=('patch',),
        evaluator=COCO,
    )


def _write_boxes(folder, pictures, truth, classes, evaluator, **parts) -> Path:
    (folder / 'images').mkdir()
    images, annotations = [], []
    for n, (name, picture) in enumerate(pictures.items()):
        assert cv2.imwrite(str(folder / 'images' / name), picture)
        height, width = picture.shape[:2]
        image = {'file_name': name, 'width': width, 'height': height}
        images.append({'id': 7 + n, **image})
        for label, x1, y1, x2, y2 in truth[name]:
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': 7 + n,
                    'category_id': 3 * label + 2,
                    'bbox': [x1, y1, x2 - x1, y2 - y1],
                    # An outline of two thirds, as those of a polygon.
                    'area': (x2 - x1) * (y2 - y1) * 2 / 3,
                    'iscrowd': 0,
                    'segmentation': [[x1, y1, x2, y1, x2, y2, x1, y2]],
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
    root = folder.as_posix()
    config = folder / 'recited.py'
    config.write_text(
        DET_CONFIG.format(
            classes=classes,
            root=root,
            evaluator=evaluator.format(root=root),
            **parts,
        )
    )
    return config


def write_segmentation(
    folder: Path,
    maps: Mapping[str, tuple[np.ndarray, np.ndarray]],
    classes: Sequence[str],
) -> Path:
    """Pictures in which a model sees the second map; truth is the first."""
    for name in ('images', 'maps'):
        (folder / name).mkdir()
    for name, (truth, told) in maps.items():
        picture = COLOURS[told][..., ::-1]
        assert cv2.imwrite(str(folder / f'images/{name}.png'), picture)
        assert cv2.imwrite(str(folder / f'maps/{name}.png'), truth)
    config = folder / 'recited_maps.py'
    config.write_text(
        SEG_CONFIG.format(
            classes=tuple(classes), num=len(classes), root=folder.as_posix()
        )
    )
    return config
