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
    semantic,
)
from mmdet.registry import MODELS
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
