"""A detector whose answer is known: it finds one red and one blue patch.

Red is class 0 with score 0.9, blue class 1 with score 0.4 (the model's only
weights). Boxes are taken from the input of the model and put back into the
original image by the scale factor of the pipeline.
"""

from pathlib import Path

import cv2
import numpy as np
import torch
from mmdet.structures import DetDataSample
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import nn

CLASSES = ('red', 'blue')
RED, BLUE = (255, 0, 0), (0, 0, 255)
CONFIG = """
custom_imports = dict(imports=['rectangle_finder'])
default_scope = 'mmdet'
data_root = {root!r}
model = dict(
    type='mmengine.RectangleFinder',
    data_preprocessor=dict(
        type='mmdet.DetDataPreprocessor', pad_size_divisor=32))
val_dataloader = dict(
    dataset=dict(
        type='mmdet.CocoDataset',
        metainfo=dict(classes=('red', 'blue')),
        data_root=data_root,
        ann_file='val.json',
        data_prefix=dict(img='images/'),
        test_mode=True,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='mmdet.Resize', scale=(200, 100), keep_ratio=False),
            dict(type='mmdet.LoadAnnotations', with_bbox=True),
            dict(
                type='mmdet.PackDetInputs',
                meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                           'scale_factor')),
        ]))
test_dataloader = val_dataloader
"""


@MODELS.register_module(force=True)
class RectangleFinder(BaseModel):
    """See the docstring of the module."""

    def __init__(self, masks=False, extra=0, data_preprocessor=None):
        super().__init__(data_preprocessor)
        self.masks = masks
        self.scores = nn.Parameter(torch.tensor([0.9, 0.4]))
        self.extra = nn.Parameter(torch.zeros(extra)) if extra else None
        self.batch_sizes = []

    def forward(self, inputs, data_samples=None, mode='tensor'):
        self.batch_sizes.append(len(inputs))
        return [self.find(*pair) for pair in zip(inputs.float(), data_samples)]

    def find(self, image, sample):
        blue, green, red = image.cpu()
        boxes, labels, masks = [], [], []
        for label, patch in enumerate(
            (
                (red > 150) & (green < 100) & (blue < 100),
                (blue > 150) & (green < 100) & (red < 100),
            )
        ):
            rows, columns = torch.nonzero(patch, as_tuple=True)
            if not len(rows):
                continue
            box = [columns.min(), rows.min(), columns.max(), rows.max()]
            boxes.append(torch.stack(box) + torch.tensor([0, 0, 1, 1]))
            labels.append(label)
            high, wide = sample.img_shape[:2]
            mask = patch[:high, :wide].numpy().astype(np.uint8)
            size = sample.ori_shape[1::-1]
            masks.append(cv2.resize(mask, size, interpolation=0) > 0)
        scale = torch.tensor(sample.scale_factor).repeat(2)
        boxes = torch.stack(boxes) if boxes else torch.zeros(0, 4)
        instances = InstanceData(
            bboxes=boxes / scale,
            labels=torch.tensor(labels, dtype=torch.long),
        )
        instances.scores = self.scores[instances.labels]
        if self.masks:
            size = (0, *sample.ori_shape[:2])
            instances.masks = torch.tensor(
                np.array(masks) if masks else np.zeros(size, bool)
            )
        sample = DetDataSample(metainfo=sample.metainfo)
        sample.pred_instances = instances
        return sample


def paint(path, size, **boxes):
    """Write a grey image of ``(width, height)`` with patches red= blue=."""
    image = np.full((size[1], size[0], 3), 90, np.uint8)
    for name, (x1, y1, x2, y2) in boxes.items():
        image[y1:y2, x1:x2] = {'red': RED, 'blue': BLUE}[name]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image[..., ::-1])
    return Path(path)


def write_config(folder):
    """Write the config; its data root is the folder."""
    path = Path(folder, 'finder.py')
    path.write_text(CONFIG.format(root=f'{Path(folder).as_posix()}/'))
    return path


def write_checkpoint(folder, name='finder.pth', **meta):
    """Write the weights, and what MMEngine writes next to them."""
    path = Path(folder, name)
    state = {'scores': torch.tensor([0.9, 0.4])}
    torch.save({'meta': meta, 'state_dict': state}, path)
    return path
