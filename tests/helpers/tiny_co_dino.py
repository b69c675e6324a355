"""A small CO-DINO and batches for it."""

from collections.abc import Sequence

import torch
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

import mmext
from helpers.reduce_config import reduce_model

NUM_CLASSES = 5
# Per case: boxes per image, image sizes, whether the RPN proposes.
BATCHES = {
    'ordinary': ((3, 2), ((96, 128), (80, 96)), True),
    'one image empty': ((0, 3), ((96, 128), (80, 96)), True),
    'all empty': ((0, 0), ((96, 128), (80, 96)), True),
    'no proposals': ((3, 2), ((96, 128), (80, 96)), False),
    'no boxes, no proposals': ((0, 0), ((96, 128), (80, 96)), False),
    'fewer tokens than queries': ((1, 1), ((8, 8), (8, 16)), True),
    'one box': ((1,), ((160, 160),), True),
    'crowded': ((40, 2), ((128, 128), (128, 128)), True),
    'odd size': ((2, 2), ((67, 101), (33, 57)), True),
}


def tiny_model_cfg(base: str = '5scale_r50', **overrides) -> dict:
    """A model's config, reduced to widths of 32.

    Args:
        base: Which of ``configs/_base_/models/co_*.py``, without its
            ``co_dino_``.
        **overrides: Merged over it, nested dicts included.
    """
    base = base if base.startswith('co_') else f'co_dino_{base}'
    path = mmext.config_path(f'_base_/models/{base}.py')
    model = reduce_model(Config.fromfile(path).to_dict()['model'])
    model['num_classes'] = NUM_CLASSES
    model['query_head']['transformer']['encoder']['with_cp'] = False
    merged = Config({'model': model})
    merged.merge_from_dict({'model': overrides})
    return merged.to_dict()['model']


def build_tiny(seed: int = 0, **overrides) -> torch.nn.Module:
    """Build and initialise it."""
    init_default_scope('mmdet')
    torch.manual_seed(seed)
    model = MODELS.build(tiny_model_cfg(**overrides))
    model.init_weights()
    return model


def propose_nothing(model: torch.nn.Module) -> None:
    """Make the RPN propose nothing, whatever it predicts."""
    model.train_cfg.rpn_proposal.min_bbox_size = 10_000
    for head in model.roi_head:
        head.bbox_sampler.add_gt_as_proposals = False


def _triangles(boxes: torch.Tensor, height: int, width: int) -> BitmapMasks:
    """The pixels of each box below its diagonal."""
    x1, y1, x2, y2 = boxes.T[:, :, None, None]
    right = (torch.arange(width) - x1) / (x2 - x1)
    down = (torch.arange(height)[:, None] - y1) / (y2 - y1)
    inside = (right >= 0) & (right <= down) & (down <= 1)
    return BitmapMasks(inside.byte().numpy(), height, width)


def make_samples(
    num_boxes: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    seed: int = 0,
    num_classes: int = NUM_CLASSES,
) -> list[DetDataSample]:
    """Samples with random boxes, and a triangle in each as its mask.

    ``sizes``: Heights and widths in pixels.
    """
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for count, (height, width) in zip(num_boxes, sizes):
        start = torch.rand(count, 2, generator=generator) * 0.5
        extent = 0.2 + torch.rand(count, 2, generator=generator) * 0.3
        scale = torch.tensor([width, height, width, height])
        sample = DetDataSample(
            metainfo={
                'img_shape': (height, width),
                'ori_shape': (height, width),
                'scale_factor': (1.0, 1.0),
            }
        )
        sample.gt_instances = InstanceData(
            bboxes=torch.cat((start, start + extent), 1) * scale,
            labels=torch.randint(num_classes, (count,), generator=generator),
        )
        sample.gt_instances.masks = _triangles(
            sample.gt_instances.bboxes, height, width
        )
        sample.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
        )
        samples.append(sample)
    return samples


def make_maps(
    num_boxes: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    strides: Sequence[int] = (4, 8, 16, 32, 64, 128),
) -> tuple[list[torch.Tensor], list[DetDataSample]]:
    """Random maps, 32 channels, of a canvas of 96 x 128, and their samples."""
    canvas = 96, 128
    generator = torch.Generator().manual_seed(0)
    maps = [
        torch.randn(
            len(sizes),
            32,
            *(-(-side // stride) for side in canvas),
            generator=generator,
            requires_grad=True,
        )
        for stride in strides
    ]
    samples = make_samples(num_boxes, sizes)
    for sample in samples:
        sample.set_metainfo(
            {'pad_shape': sample.img_shape, 'batch_input_shape': canvas}
        )
    return maps, samples


def make_batch(
    num_boxes: Sequence[int] = (3, 2),
    sizes: Sequence[tuple[int, int]] = ((96, 128), (80, 96)),
    seed: int = 0,
    num_classes: int = NUM_CLASSES,
) -> dict:
    """A batch as a data loader gives it."""
    generator = torch.Generator().manual_seed(seed + 1)
    images = [
        torch.randint(0, 256, (3, *size), generator=generator).to(torch.uint8)
        for size in sizes
    ]
    samples = make_samples(num_boxes, sizes, seed, num_classes)
    return {'inputs': images, 'data_samples': samples}


def flat_losses(losses: dict) -> dict[str, torch.Tensor]:
    """Loss dict with lists written as ``name[i]``."""
    flat = {}
    for name, value in losses.items():
        if isinstance(value, list | tuple):
            flat.update({f'{name}[{i}]': v for i, v in enumerate(value)})
        else:
            flat[name] = value
    return flat


def total_loss(losses: dict) -> torch.Tensor:
    """Sum of the terms whose name holds ``loss``, as mmengine sums them."""
    return sum(
        value.mean()
        for name, value in flat_losses(losses).items()
        if 'loss' in name
    )


def without_gradient(model: torch.nn.Module) -> list[str]:
    """Trainable parameters that got none; those there are, are finite."""
    missing = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), name
        elif parameter.requires_grad:
            missing.append(name)
    return missing


def training_losses(model: torch.nn.Module, batch: dict) -> dict:
    """Losses of a batch in training mode."""
    model.train()
    data = model.data_preprocessor(batch, True)
    return model.loss(data['inputs'], data['data_samples'])
