"""A multi-task model and samples small enough for a step in a test."""

import torch
from mmengine.structures import BaseDataElement, PixelData
from torch.nn import functional as F

import mmext.models  # noqa: F401

SIZE = (32, 48)


def make_config():
    """Config of a model with three tasks, and four classes."""
    fcn = dict(
        type='mmseg.FCNHead',
        in_channels=64,
        channels=8,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0,
        norm_cfg=dict(type='GN', num_groups=2),
    )
    return dict(
        type='mmext.MultiTaskModel',
        data_preprocessor=dict(
            type='mmext.MultiTaskDataPreprocessor',
            mean=[127.5] * 3,
            std=[60.0] * 3,
        ),
        backbone=dict(
            type='mmseg.ResNet',
            depth=18,
            base_channels=8,
            stem_channels=8,
            strides=(1, 2, 1, 1),
            dilations=(1, 1, 2, 4),
            norm_cfg=dict(type='GN', num_groups=2),
        ),
        architecture=dict(type='mmext.HardSharing'),
        heads=dict(
            semantic=dict(
                type='mmext.SegmentationTaskHead',
                decode_head=fcn,
                num_classes=4,
            ),
            depth=dict(type='mmext.DepthTaskHead', decode_head=fcn),
            normal=dict(type='mmext.SurfaceNormalTaskHead', decode_head=fcn),
        ),
        balancer=dict(type='mmext.EqualWeights'),
    )


def make_samples(count, size=SIZE):
    """A batch as a data loader gives it; all pixels valid."""
    generator = torch.Generator().manual_seed(0)
    inputs, samples = [], []
    for _ in range(count):
        image = 255 * torch.rand(3, *size, generator=generator)
        label = (image[:1] / 64).long().clamp(max=3)
        normal = F.normalize(image - 127.5, dim=0)
        inputs.append(image)
        samples.append(
            BaseDataElement(
                metainfo=dict(img_shape=size, ori_shape=size),
                gt_sem_seg=PixelData(data=label),
                gt_depth=PixelData(data=1 + image[1:2] / 64),
                gt_normal=PixelData(data=normal),
            )
        )
    return dict(inputs=inputs, data_samples=samples)
