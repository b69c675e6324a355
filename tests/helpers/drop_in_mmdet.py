"""Objects, masks and features for heads of MMDetection."""

from types import SimpleNamespace

import numpy as np
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.structures import InstanceData, PixelData

SIZE = (64, 64)
META = {'img_shape': SIZE, 'batch_input_shape': SIZE, 'pad_shape': SIZE}
CLASSES = 4


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def objects() -> list[InstanceData]:
    """Two images with 3 and 2 objects."""
    results = []
    for count, seed in ((3, 0), (2, 1)):
        generator = torch.Generator().manual_seed(seed)
        start = torch.rand(count, 2, generator=generator) * 20
        extent = torch.rand(count, 2, generator=generator) * 20 + 16
        masks = torch.rand(count, *SIZE, generator=generator) > 0.4
        results.append(
            InstanceData(
                bboxes=torch.cat((start, start + extent), 1),
                labels=torch.randint(
                    0, CLASSES, (count,), generator=generator
                ),
                masks=BitmapMasks(masks.numpy().astype(np.uint8), *SIZE),
            )
        )
    return results


def features(*strides: int) -> list[torch.Tensor]:
    return [normal(2, 8, SIZE[0] // s, SIZE[1] // s) for s in strides]


def sampled(gt: list[InstanceData]) -> list[SimpleNamespace]:
    """Each object found twice."""
    return [
        SimpleNamespace(
            pos_priors=item.bboxes.repeat(2, 1),
            pos_bboxes=item.bboxes.repeat(2, 1),
            pos_assigned_gt_inds=torch.arange(len(item)).repeat(2),
            pos_gt_labels=item.labels.repeat(2),
        )
        for item in gt
    ]


def semantic(num_classes: int, ignored: int) -> list[DetDataSample]:
    batch = []
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        label = torch.randint(0, num_classes, (1, *SIZE), generator=generator)
        label[:, :, 40:] = ignored
        sample = DetDataSample(metainfo=META)
        sample.gt_sem_seg = PixelData(sem_seg=label)
        batch.append(sample)
    return batch
