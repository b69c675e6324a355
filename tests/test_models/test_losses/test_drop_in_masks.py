"""Our loss in the configs of MMDetection's mask heads."""

import pytest
from helpers.drop_in import assert_drop_in
from helpers.drop_in_mmdet import (
    CLASSES,
    META,
    features,
    normal,
    objects,
    sampled,
)
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict

SIGMOID = {'type': 'CrossEntropyLoss', 'use_sigmoid': True}
SOFTMAX = {'type': 'CrossEntropyLoss'}


def assert_same_in(cfg: dict, run) -> None:
    assert_drop_in(MODELS, 'mmdet', cfg, run)


@pytest.mark.parametrize('class_agnostic', [False, True])
@pytest.mark.parametrize('threshold', [0.5, -1])
def test_mask_head(class_agnostic, threshold):
    """Also targets between 0 and 1."""
    cfg = {
        'type': 'FCNMaskHead',
        'num_convs': 1,
        'in_channels': 8,
        'conv_out_channels': 8,
        'num_classes': CLASSES,
        'class_agnostic': class_agnostic,
        'loss_mask': {'type': 'CrossEntropyLoss', 'use_mask': True},
    }
    train_cfg = ConfigDict(mask_size=14, soft_mask_target=threshold < 0)

    def run(head):
        loss = head.loss_and_target(
            head(normal(10, 8, 7, 7)), sampled(objects()), objects(), train_cfg
        )
        return loss['loss_mask']

    assert_same_in(cfg, run)


def transformer() -> dict:
    """The smallest that it can be built of."""
    layer = {
        'self_attn_cfg': {
            'embed_dims': 8,
            'num_heads': 2,
            'num_levels': 3,
            'num_points': 2,
            'batch_first': True,
        },
        'ffn_cfg': {'embed_dims': 8, 'feedforward_channels': 16},
    }
    attention = {'embed_dims': 8, 'num_heads': 2, 'batch_first': True}
    return {
        'pixel_decoder': {
            'type': 'MSDeformAttnPixelDecoder',
            'num_outs': 3,
            'norm_cfg': {'type': 'GN', 'num_groups': 2},
            'act_cfg': {'type': 'ReLU'},
            'encoder': {'num_layers': 1, 'layer_cfg': layer},
            'positional_encoding': {'num_feats': 4, 'normalize': True},
        },
        'positional_encoding': {'num_feats': 4, 'normalize': True},
        'transformer_decoder': {
            'return_intermediate': True,
            'num_layers': 1,
            'layer_cfg': {
                'self_attn_cfg': attention,
                'cross_attn_cfg': attention,
                'ffn_cfg': {'embed_dims': 8, 'feedforward_channels': 16},
            },
        },
    }


def mask2former() -> dict:
    match = {'use_sigmoid': True, 'weight': 5.0}
    return {
        'type': 'Mask2FormerHead',
        'in_channels': [8] * 4,
        'strides': [4, 8, 16, 32],
        'feat_channels': 8,
        'out_channels': 8,
        'num_things_classes': CLASSES,
        'num_stuff_classes': 0,
        'num_queries': 10,
        **transformer(),
        'loss_cls': {**SOFTMAX, 'class_weight': [1.0] * CLASSES + [0.1]},
        'loss_mask': {**SIGMOID, 'loss_weight': 5.0},
        'loss_dice': {
            'type': 'DiceLoss',
            'activate': True,
            'naive_dice': True,
        },
        'train_cfg': {
            'num_points': 64,
            'assigner': {
                'type': 'HungarianAssigner',
                'match_costs': [
                    {'type': 'ClassificationCost', 'weight': 2.0},
                    {'type': 'CrossEntropyLossCost', **match},
                ],
            },
            'sampler': {'type': 'MaskPseudoSampler'},
        },
    }


def test_mask2former_head():
    """Masks are sampled between pixels: targets from 0 to 1."""

    def run(head):
        batch = []
        for obj in objects():
            sample = DetDataSample(metainfo=META)
            sample.gt_instances = obj
            batch.append(sample)
        return head.loss(features(4, 8, 16, 32), batch)

    assert_same_in(mask2former(), run)
