"""Make a shipped CO-DINO model small enough to train a step in a test.

The structure stays: backbone kind, number of levels, heads, losses, policies,
checkpointing. Widths, depths and counts shrink, and no weights are loaded.
"""

import copy
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from mmengine.registry import MODELS

CHANNELS = 32
CANVAS = (96, 96)


def reduce_model(model: dict) -> dict:
    """A small model of the same structure.

    Args:
        model: The ``model`` section of a config, a plain dict. Not edited.

    Returns:
        The reduced section.
    """
    model = copy.deepcopy(model)
    _skip_without_packages(model)
    channels = _reduce_backbone(
        model['backbone'], model['neck']['in_channels']
    )
    model['neck'].update(in_channels=channels, out_channels=CHANNELS)
    if 'norm_cfg' in model['neck']:
        model['neck']['norm_cfg'] = {'type': 'GN', 'num_groups': 8}
    for augment in model['data_preprocessor'].get('batch_augments') or []:
        augment['size'] = CANVAS
    _reduce_query_head(model['query_head'])
    model['rpn_head'].update(in_channels=CHANNELS, feat_channels=CHANNELS)
    for head in _as_list(model['roi_head']):
        head['bbox_roi_extractor']['out_channels'] = CHANNELS
        head['bbox_head'].update(
            in_channels=CHANNELS, fc_out_channels=CHANNELS
        )
        if 'conv_out_channels' in head['bbox_head']:
            head['bbox_head']['conv_out_channels'] = CHANNELS
        if 'mask_head' in head:
            head['mask_roi_extractor']['out_channels'] = CHANNELS
            head['mask_head'].update(
                in_channels=CHANNELS, conv_out_channels=CHANNELS, num_convs=1
            )
    for name, part in (model.get('mask_head') or {}).items():
        if name == 'mask_roi_extractor':
            part['out_channels'] = CHANNELS
        elif name in ('mask_head', 'mask_iou_head'):
            part.update(in_channels=CHANNELS, conv_out_channels=CHANNELS)
    for head in _as_list(model['bbox_head']):
        head.update(in_channels=CHANNELS, feat_channels=CHANNELS)
    model['train_cfg']['rpn_proposal'].update(nms_pre=60, max_per_img=40)
    model['test_cfg']['rpn_head'].update(nms_pre=60, max_per_img=40)
    return model


def _skip_without_packages(model: dict) -> None:
    if model['backbone']['type'] == 'mmext.HFBackbone':
        pytest.importorskip('transformers')


def _as_list(heads: dict | list) -> list:
    return heads if isinstance(heads, list) else [heads]


def _reduce_backbone(backbone: dict, channels: list[int]) -> list[int]:
    """Make ResNets and Swin Transformers small; the channels it returns."""
    backbone.pop('init_cfg', None)
    if backbone['type'] == 'mmdet.SwinTransformer':
        widths = [8, 16, 32, 64]
        backbone.update(
            embed_dims=8,
            depths=[1, 1, 2, 1],
            num_heads=[1, 2, 4, 8],
            window_size=4,
            convert_weights=False,
        )
    elif backbone['type'] == 'mmdet.ResNet':
        widths = [4, 8, 16, 32]
        backbone.update(depth=18, base_channels=4, stem_channels=4)
        if backbone['norm_cfg']['type'] == 'GN':
            backbone['norm_cfg']['num_groups'] = 2
    elif backbone['type'] == 'mmext.EVA02ViT':
        backbone.update(
            arch={'embed_dims': 16, 'num_layers': 2, 'num_heads': 2},
            window_size=3,
            global_indices=[1],
        )
        return [16]
    elif backbone['type'] == 'mmext.HFBackbone':
        backbone['config'].update(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2
        )
        if 'intermediate_size' in backbone['config']:
            backbone['config']['intermediate_size'] = 32
        backbone['frozen_stages'] = 2
        return [16]
    else:
        return channels
    return [widths[i] for i in backbone['out_indices']]


def _reduce_query_head(head: dict) -> None:
    head.update(num_queries=20, max_co_queries=20)
    head['positional_encoding']['num_feats'] = CHANNELS // 2
    if head['dn_cfg'] is not None:
        head['dn_cfg']['group_cfg']['num_dn_queries'] = 8
    transformer = head['transformer']
    transformer['embed_dims'] = CHANNELS
    for name, num_layers in (('encoder', 1), ('decoder', 2)):
        part = transformer[name]
        part.update(
            num_layers=num_layers, num_heads=4, feedforward_channels=CHANNELS
        )
        if not isinstance(part['with_cp'], bool):
            part['with_cp'] = min(part['with_cp'], num_layers)


def settings_of(model: dict) -> set[tuple[str, object]]:
    """Keys of a model with their types and switches; of numbers the kind."""

    def walk(value: object, key: str) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict):
            for name, item in value.items():
                if name != 'init_cfg':
                    yield from walk(item, f'{key}.{name}')
        elif isinstance(value, list | tuple):
            yield f'{key}[]', len(value)
            for item in value:
                yield from walk(item, f'{key}[]')
        else:
            number = isinstance(value, int | float) and value not in (0, 1)
            yield key, 'a number' if number else value

    return set(walk(model, 'model'))


def state_spec(model: dict) -> dict[str, tuple[str, str]]:
    """Shape and dtype of every tensor of a model, none of them allocated.

    Args:
        model: The ``model`` section of a config, a plain dict. Not edited.

    Returns:
        Name to shape and dtype, both as text.
    """
    _skip_without_packages(model)
    linspace = torch.linspace
    # Swin reads the values of its drop path rates, which "meta" has not.
    torch.linspace = partial(linspace, device='cpu')
    try:
        with torch.device('meta'):
            built = MODELS.build(copy.deepcopy(model))
    finally:
        torch.linspace = linspace
    return {
        key: (str(tuple(value.shape)), str(value.dtype))
        for key, value in built.state_dict().items()
    }
