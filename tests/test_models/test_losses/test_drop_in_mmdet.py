"""Our loss in the configs of MMDetection's heads."""

import pytest
import torch
from helpers.drop_in import assert_drop_in
from helpers.drop_in_mmdet import (
    CLASSES,
    META,
    features,
    normal,
    objects,
    sampled,
    semantic,
)
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict

SIGMOID = {'type': 'CrossEntropyLoss', 'use_sigmoid': True}
SOFTMAX = {'type': 'CrossEntropyLoss'}
ANCHORS = {
    'type': 'AnchorGenerator',
    'ratios': [1.0],
    'octave_base_scale': 4,
    'scales_per_octave': 1,
    'strides': [8, 16],
}
CODER = {'type': 'DeltaXYWHBBoxCoder'}


def assert_same_in(cfg: dict, run) -> None:
    assert_drop_in(MODELS, 'mmdet', cfg, run)


def dense(*strides: int, has_classes: bool = True):
    """Losses of a head, of its maps at some strides."""

    def run(head):
        results = objects()
        for result in results:
            result.labels *= has_classes
        return head.loss_by_feat(
            *head(features(*strides)), results, [META] * 2
        )

    return run


def assigned(kind: str, **options) -> ConfigDict:
    return ConfigDict(
        assigner={'type': kind, **options},
        allowed_border=-1,
        pos_weight=-1,
        debug=False,
    )


@pytest.mark.parametrize('sigmoid', [True, False])
def test_rpn_head(sigmoid):
    train_cfg = assigned(
        'MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.3, min_pos_iou=0.3
    )
    train_cfg.sampler = {
        'type': 'RandomSampler',
        'num': 64,
        'pos_fraction': 0.5,
        'neg_pos_ub': -1,
        'add_gt_as_proposals': False,
    }
    cfg = {
        'type': 'RPNHead',
        'in_channels': 8,
        'feat_channels': 8,
        'anchor_generator': ANCHORS,
        'bbox_coder': CODER,
        'loss_cls': SIGMOID if sigmoid else SOFTMAX,
        'loss_bbox': {'type': 'L1Loss'},
        'train_cfg': train_cfg,
    }
    assert_same_in(cfg, dense(8, 16, has_classes=False))


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('sigmoid', [False, True])
@pytest.mark.parametrize('reduction', [None, 'none'])
def test_bbox_head(weighted, sigmoid, reduction):
    """Background is the last class, with sigmoid, too."""
    loss = dict(SIGMOID if sigmoid else SOFTMAX, loss_weight=2.0)
    if weighted:
        loss['class_weight'] = [0.5, 1.0, 2.0, 3.0, 0.1]
    cfg = {
        'type': 'Shared2FCBBoxHead',
        'in_channels': 8,
        'fc_out_channels': 16,
        'roi_feat_size': 2,
        'num_classes': CLASSES,
        'bbox_coder': CODER,
        'loss_cls': loss,
        'loss_bbox': {'type': 'L1Loss'},
    }
    generator = torch.Generator().manual_seed(3)
    label = torch.randint(0, CLASSES + 1, (30,), generator=generator)
    assert (label == CLASSES).any()
    weight = torch.rand(30, generator=generator)

    def run(head):
        scores, boxes = head(normal(30, 8, 2, 2))
        losses = head.loss(
            scores,
            boxes,
            normal(30, 5).abs(),
            label,
            weight,
            normal(30, 4),
            torch.ones(30, 4),
            reduction_override=reduction,
        )
        return {'loss_cls': losses['loss_cls']}

    assert_same_in(cfg, run)


def test_yolo_v3():
    """Sums, with weights for one dimension or all; targets 0 to 1."""
    cfg = {
        'type': 'YOLOV3Head',
        'num_classes': CLASSES,
        'in_channels': [8, 8],
        'out_channels': [8, 8],
        'anchor_generator': {
            'type': 'YOLOAnchorGenerator',
            'base_sizes': [[(30, 30), (24, 30)], [(16, 16), (20, 24)]],
            'strides': [16, 8],
        },
        'featmap_strides': [16, 8],
        'norm_cfg': {'type': 'GN', 'num_groups': 2},
        'loss_cls': {**SIGMOID, 'reduction': 'sum'},
        'loss_conf': {**SIGMOID, 'reduction': 'sum'},
        'loss_xy': {**SIGMOID, 'reduction': 'sum', 'loss_weight': 2.0},
        'loss_wh': {'type': 'MSELoss', 'reduction': 'sum'},
        'train_cfg': assigned(
            'GridAssigner', pos_iou_thr=0.5, neg_iou_thr=0.5, min_pos_iou=0
        ),
    }
    assert_same_in(cfg, dense(16, 8))


@pytest.mark.parametrize('avg_non_ignore', [False, True])
@pytest.mark.parametrize('weight', [None, [0.5, 2.0, 1.0]])
def test_panoptic_fpn_head(avg_non_ignore, weight):
    """Class weights do not change what MMDetection divides by."""
    cfg = {
        'type': 'PanopticFPNHead',
        'num_things_classes': 3,
        'num_stuff_classes': 2,
        'in_channels': 8,
        'inner_channels': 8,
        'end_level': 2,
        'norm_cfg': {'type': 'GN', 'num_groups': 2},
        'loss_seg': {
            **SOFTMAX,
            'ignore_index': 255,
            'avg_non_ignore': avg_non_ignore,
            'class_weight': weight,
        },
    }
    batch = semantic(5, 255)
    assert_same_in(cfg, lambda head: head.loss(features(4, 8), batch))


def test_detr_head():
    """It makes a tensor of class weights and puts it into the config."""
    cfg = {
        'type': 'DETRHead',
        'num_classes': CLASSES,
        'embed_dims': 8,
        'loss_cls': {
            **SOFTMAX,
            'bg_cls_weight': 0.1,
            'use_sigmoid': False,
            'class_weight': 1.0,
        },
        'train_cfg': {
            'assigner': {
                'type': 'HungarianAssigner',
                'match_costs': [
                    {'type': 'ClassificationCost', 'weight': 1.0},
                    {'type': 'BBoxL1Cost', 'weight': 5.0},
                ],
            }
        },
    }

    def run(head):
        return head.loss_by_feat(
            *head(normal(2, 2, 20, 8)), objects(), [META] * 2
        )

    assert_same_in(cfg, run)


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
