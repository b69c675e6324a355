"""Make a shipped segmentor small enough to train a step in a test.

The structure stays: kinds of backbone, heads and losses. Widths, depths and
counts shrink, BN takes the place of SyncBN, and no weights are loaded.
"""

import copy
from collections.abc import Callable

import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

SIZE = (64, 96)
# Smaller, so that training pads labels and edges.
IMAGE_SIZE = (56, 88)
CHANNELS = 8


def reduce_model(model: dict) -> dict:
    """A small model of the same structure.

    Args:
        model: The ``model`` section of a config, a plain dict. Not edited.

    Returns:
        The reduced section.
    """
    model = _without_sync_bn(copy.deepcopy(model))
    backbone, head = model['backbone'], model['decode_head']
    backbone.pop('init_cfg', None)
    widths = _REDUCERS[backbone['type']](backbone)
    for value in (head, model.get('auxiliary_head')):
        if value is None:
            continue
        index = value.get('in_index', 0)
        value['in_channels'] = (
            [widths[i] for i in index]
            if isinstance(index, list)
            else widths[index]
        )
        value['channels'] = CHANNELS
        for loss in _as_list(value['loss_decode']):
            if 'min_kept' in loss:
                loss['min_kept'] = 20
    if 'c1_channels' in head:
        head.update(c1_in_channels=widths[0], c1_channels=CHANNELS)
    if model['data_preprocessor'].get('size'):
        model['data_preprocessor']['size'] = SIZE
    return model


def _as_list(losses: dict | list) -> list:
    return losses if isinstance(losses, list) else [losses]


def _without_sync_bn(value):
    if isinstance(value, dict):
        return {key: _without_sync_bn(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_sync_bn(item) for item in value]
    return 'BN' if value == 'SyncBN' else value


def _reduce_resnet(backbone: dict) -> list[int]:
    backbone.update(depth=18, base_channels=4, stem_channels=4)
    return [4, 8, 16, 32]


def _reduce_pidnet(backbone: dict) -> list[int]:
    backbone.update(channels=4, ppm_channels=4, num_branch_blocks=1)
    return [16]


def _reduce_mit(backbone: dict) -> list[int]:
    backbone.update(embed_dims=4, num_layers=[1] * 4, num_heads=[1, 1, 2, 2])
    return [4, 4, 8, 8]


def _reduce_mae(backbone: dict) -> list[int]:
    backbone.update(arch='mini', out_indices=(1, 2, 4, 5))
    return [96, 96, 96, 96]


_REDUCERS: dict[str, Callable[[dict], list[int]]] = {
    'mmext.MAEViT': _reduce_mae,
    'mmseg.ResNetV1c': _reduce_resnet,
    'mmseg.PIDNet': _reduce_pidnet,
    'mmseg.MixVisionTransformer': _reduce_mit,
}


def make_batch(num_classes: int, ignore_index: int) -> dict:
    """Two images with all classes, ignored labels and an edge."""
    height, width = IMAGE_SIZE
    samples = []
    for shift in range(2):
        label = torch.arange(height * width).reshape(1, height, width) + shift
        label %= num_classes
        label[:, :7, :9] = ignore_index
        edge = torch.zeros_like(label)
        edge[:, 20:24] = 1
        sample = SegDataSample(
            metainfo={
                'img_shape': IMAGE_SIZE,
                'ori_shape': IMAGE_SIZE,
                'img_path': f'{shift}.png',
            }
        )
        sample.gt_sem_seg = PixelData(data=label)
        sample.gt_edge_map = PixelData(data=edge)
        samples.append(sample)
    inputs = [torch.randint(0, 255, (3, height, width), dtype=torch.uint8)] * 2
    return {'inputs': inputs, 'data_samples': samples}


def state_shapes(model: dict) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a model, none of them allocated.

    Args:
        model: The ``model`` section of a config, a plain dict. Not edited.

    Returns:
        Key of the state dict to shape.
    """
    model = copy.deepcopy(model)
    for loss in _as_list(model['decode_head']['loss_decode']):
        loss.pop('class_weight', None)  # checked by value; no weights of it
    linspace = torch.linspace
    # The transformer reads its drop path rates, which "meta" has not.
    torch.linspace = lambda *args, **kwargs: linspace(
        *args, **kwargs | {'device': 'cpu'}
    )
    try:
        with torch.device('meta'):
            # A host's model may need attributes for keys.
            built = MODELS.build(ConfigDict(model))
    finally:
        torch.linspace = linspace
    return {k: tuple(v.shape) for k, v in built.state_dict().items()}
