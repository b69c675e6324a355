"""Small configs of the hosts' kinds, for a preflight; none needs data."""

import copy

_RESNET = {
    'depth': 18,
    'base_channels': 4,
    'stem_channels': 4,
    'out_indices': (0, 1, 2, 3),
    'init_cfg': {'type': 'Pretrained', 'checkpoint': 'torchvision://resnet18'},
}
_NARROW = {
    'depth': 18,
    'base_channels': 4,
    'stem_channels': 4,
    'out_indices': (3,),
}
_FPN = {
    'type': 'FPN',
    'in_channels': [4, 8, 16, 32],
    'out_channels': 16,
    'num_outs': 5,
}
_OPTIM = {
    'type': 'OptimWrapper',
    'optimizer': {'type': 'SGD', 'lr': 0.01},
}


def detector(**options) -> dict:
    """A RetinaNet for three classes.

    Args:
        **options: Replace top-level keys.

    Returns:
        A config as a plain dict, of its own.
    """
    cfg = {
        'default_scope': 'mmdet',
        'model': _retinanet(),
        'optim_wrapper': _OPTIM,
        'train_dataloader': _loader(
            'CocoDataset',
            [
                {'type': 'LoadImageFromFile'},
                {'type': 'LoadAnnotations', 'with_bbox': True},
                {'type': 'Resize', 'scale': (1333, 800), 'keep_ratio': True},
                {'type': 'RandomFlip', 'prob': 0.5},
                {'type': 'PackDetInputs'},
            ],
        ),
    }
    return copy.deepcopy({**cfg, **options})


def _retinanet() -> dict:
    return {
        'type': 'RetinaNet',
        'data_preprocessor': {
            'type': 'DetDataPreprocessor',
            'mean': [0, 0, 0],
            'std': [1, 1, 1],
            'pad_size_divisor': 32,
        },
        'backbone': {'type': 'ResNet', **_RESNET},
        'neck': _FPN,
        'bbox_head': {
            'type': 'RetinaHead',
            'num_classes': 3,
            'in_channels': 16,
            'feat_channels': 16,
            'stacked_convs': 1,
            'anchor_generator': {
                'type': 'AnchorGenerator',
                'octave_base_scale': 4,
                'scales_per_octave': 1,
                'ratios': [1.0],
                'strides': [4, 8, 16, 32, 64],
            },
            'bbox_coder': {'type': 'DeltaXYWHBBoxCoder'},
            'loss_cls': {'type': 'FocalLoss'},
            'loss_bbox': {'type': 'L1Loss'},
        },
        'train_cfg': {
            'assigner': {
                'type': 'MaxIoUAssigner',
                'pos_iou_thr': 0.5,
                'neg_iou_thr': 0.4,
                'min_pos_iou': 0,
                'ignore_iof_thr': 0.5,
            },
            'sampler': {'type': 'PseudoSampler'},
            'allowed_border': -1,
            'pos_weight': -1,
        },
        'test_cfg': {},
    }


def segmentor(**options) -> dict:
    """An FCN for five classes with SyncBN, padded to 512 by 1024.

    Args:
        **options: Replace top-level keys.

    Returns:
        A config as a plain dict, of its own.
    """
    model = {
        'type': 'EncoderDecoder',
        'data_preprocessor': {
            'type': 'SegDataPreProcessor',
            'mean': [0, 0, 0],
            'std': [1, 1, 1],
            'size': (512, 1024),
            'seg_pad_val': 255,
        },
        'backbone': {
            'type': 'ResNetV1c',
            'norm_cfg': {'type': 'SyncBN'},
            **_RESNET,
        },
        'decode_head': {
            'type': 'FCNHead',
            'in_channels': 32,
            'in_index': 3,
            'channels': 8,
            'num_convs': 1,
            'num_classes': 5,
            'norm_cfg': {'type': 'SyncBN'},
        },
        'train_cfg': {},
        'test_cfg': {'mode': 'whole'},
    }
    cfg = {
        'default_scope': 'mmseg',
        'model': model,
        'optim_wrapper': {
            **_OPTIM,
            'type': 'AmpOptimWrapper',
            'loss_scale': 'dynamic',
        },
        'train_dataloader': _loader(
            'CityscapesDataset',
            [
                {'type': 'LoadImageFromFile'},
                {'type': 'LoadAnnotations'},
                {'type': 'RandomCrop', 'crop_size': (512, 1024)},
                {'type': 'RandomFlip', 'prob': 0.5},
                {'type': 'PackSegInputs'},
            ],
        ),
    }
    return copy.deepcopy({**cfg, **options})


def _loader(dataset: str, pipeline: list) -> dict:
    return {
        'batch_size': 2,
        'num_workers': 2,
        'sampler': {'type': 'DefaultSampler', 'shuffle': True},
        'dataset': {
            'type': dataset,
            'data_root': 'data/none',
            'ann_file': 'none.json',
            'pipeline': pipeline,
        },
    }


def classifier() -> dict:
    """A ResNet of mmpretrain for ten classes."""
    return {
        'default_scope': 'mmpretrain',
        'model': {
            'type': 'ImageClassifier',
            'backbone': copy.deepcopy({'type': 'ResNet', **_NARROW}),
            'neck': {'type': 'GlobalAveragePooling'},
            'head': {
                'type': 'LinearClsHead',
                'num_classes': 10,
                'in_channels': 32,
                'loss': {'type': 'CrossEntropyLoss'},
            },
        },
        'optim_wrapper': copy.deepcopy(_OPTIM),
        'train_dataloader': {
            **_loader(
                'ImageNet',
                [
                    {'type': 'LoadImageFromFile'},
                    {'type': 'RandomResizedCrop', 'scale': 64},
                    {'type': 'PackInputs'},
                ],
            ),
            'collate_fn': {'type': 'default_collate'},
        },
    }
