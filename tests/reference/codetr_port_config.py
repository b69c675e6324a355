"""Model sections as the two public CO-DETR projects write them.

Built from the schemas: names of keys and types are theirs, the numbers are
those of the published models. Every call gives new dicts.
"""

STRIDES = [4, 8, 16, 32, 64, 128]
CO_WEIGHT = 6 * 2.0


def coder(*stds: float) -> dict:
    """Delta box coder."""
    return {
        'type': 'DeltaXYWHBBoxCoder',
        'target_means': [0.0] * 4,
        'target_stds': list(stds),
    }


def cross_entropy(**kwargs) -> dict:
    """Cross entropy with the weight of a co-head."""
    return {'type': 'CrossEntropyLoss', 'loss_weight': CO_WEIGHT, **kwargs}


def weighted(name: str, weight: float) -> dict:
    """A loss or a cost."""
    return {'type': name, 'loss_weight': weight}


def max_iou_assigner(pos: float, neg: float, low_quality: bool) -> dict:
    """Assigner of RPN and R-CNN."""
    return {
        'type': 'MaxIoUAssigner',
        'pos_iou_thr': pos,
        'neg_iou_thr': neg,
        'min_pos_iou': neg,
        'match_low_quality': low_quality,
        'ignore_iof_thr': -1,
    }


def sampler(num: int, fraction: float, add_gt: bool) -> dict:
    """Random sampler."""
    return {
        'type': 'RandomSampler',
        'num': num,
        'pos_fraction': fraction,
        'neg_pos_ub': -1,
        'add_gt_as_proposals': add_gt,
    }


def nms(threshold: float, **kwargs) -> dict:
    """Settings with non-maximum suppression."""
    return {'nms': {'type': 'nms', 'iou_threshold': threshold}, **kwargs}


def resnet50() -> dict:
    """Backbone of the R50 models, without weights."""
    return {
        'type': 'ResNet',
        'depth': 50,
        'num_stages': 4,
        'out_indices': (0, 1, 2, 3),
        'frozen_stages': 1,
        'norm_cfg': {'type': 'BN', 'requires_grad': False},
        'norm_eval': True,
        'style': 'pytorch',
    }


def swin_l() -> dict:
    """Backbone of the Swin-L models in mmdet's names, without weights."""
    return {
        'type': 'SwinTransformer',
        'pretrain_img_size': 384,
        'embed_dims': 192,
        'depths': [2, 2, 18, 2],
        'num_heads': [6, 12, 24, 48],
        'window_size': 12,
        'drop_path_rate': 0.3,
        'patch_norm': True,
        'out_indices': (0, 1, 2, 3),
        'convert_weights': True,
    }


def swin_l_v1() -> dict:
    """The same backbone as the original project writes it."""
    return {
        'type': 'SwinTransformerV1',
        'embed_dim': 192,
        'depths': [2, 2, 18, 2],
        'num_heads': [6, 12, 24, 48],
        'out_indices': (0, 1, 2, 3),
        'window_size': 12,
        'ape': False,
        'drop_path_rate': 0.3,
        'patch_norm': True,
        'use_checkpoint': False,
        'pretrained': None,
    }


def deformable() -> dict:
    """Deformable attention over five levels."""
    return {
        'type': 'MultiScaleDeformableAttention',
        'embed_dims': 256,
        'num_levels': 5,
        'dropout': 0.0,
    }


def transformer(with_cp: int = 4) -> dict:
    """The transformer, as both projects write it."""
    ffn = {'feedforward_channels': 2048, 'ffn_dropout': 0.0}
    attention = {
        'type': 'MultiheadAttention',
        'embed_dims': 256,
        'num_heads': 8,
        'dropout': 0.0,
    }
    encoder_layer = {
        'type': 'BaseTransformerLayer',
        'attn_cfgs': deformable(),
        'operation_order': ('self_attn', 'norm', 'ffn', 'norm'),
        **ffn,
    }
    decoder_layer = {
        'type': 'DetrTransformerDecoderLayer',
        'attn_cfgs': [attention, deformable()],
        'operation_order': (
            *('self_attn', 'norm', 'cross_attn', 'norm'),
            *('ffn', 'norm'),
        ),
        **ffn,
    }
    return {
        'type': 'CoDinoTransformer',
        'with_coord_feat': False,
        'num_co_heads': 2,
        'num_feature_levels': 5,
        'encoder': {
            'type': 'DetrTransformerEncoder',
            'num_layers': 6,
            'with_cp': with_cp,
            'transformerlayers': encoder_layer,
        },
        'decoder': {
            'type': 'DinoTransformerDecoder',
            'num_layers': 6,
            'return_intermediate': True,
            'transformerlayers': decoder_layer,
        },
    }


def query_head(num_classes: int, with_cp: int) -> dict:
    """The DETR head of the port."""
    return {
        'type': 'CoDINOHead',
        'num_query': 900,
        'num_classes': num_classes,
        'in_channels': 2048,
        'as_two_stage': True,
        'dn_cfg': {
            'label_noise_scale': 0.5,
            'box_noise_scale': 1.0,
            'group_cfg': {
                'dynamic': True,
                'num_groups': None,
                'num_dn_queries': 100,
            },
        },
        'transformer': transformer(with_cp),
        'positional_encoding': {
            'type': 'SinePositionalEncoding',
            'num_feats': 128,
            'temperature': 20,
            'normalize': True,
        },
        'loss_cls': {
            'type': 'QualityFocalLoss',
            'use_sigmoid': True,
            'beta': 2.0,
            'loss_weight': 1.0,
        },
        'loss_bbox': weighted('L1Loss', 5.0),
        'loss_iou': weighted('GIoULoss', 2.0),
    }


def rpn_head() -> dict:
    """The RPN."""
    return {
        'type': 'RPNHead',
        'in_channels': 256,
        'feat_channels': 256,
        'anchor_generator': {
            'type': 'AnchorGenerator',
            'octave_base_scale': 4,
            'scales_per_octave': 3,
            'ratios': [0.5, 1.0, 2.0],
            'strides': STRIDES,
        },
        'bbox_coder': coder(1.0, 1.0, 1.0, 1.0),
        'loss_cls': cross_entropy(use_sigmoid=True),
        'loss_bbox': weighted('L1Loss', CO_WEIGHT),
    }


def roi_head(num_classes: int) -> dict:
    """The R-CNN co-head."""
    return {
        'type': 'CoStandardRoIHead',
        'bbox_roi_extractor': {
            'type': 'SingleRoIExtractor',
            'roi_layer': {
                'type': 'RoIAlign',
                'output_size': 7,
                'sampling_ratio': 0,
            },
            'out_channels': 256,
            'featmap_strides': STRIDES[:5],
            'finest_scale': 56,
        },
        'bbox_head': {
            'type': 'Shared2FCBBoxHead',
            'in_channels': 256,
            'fc_out_channels': 1024,
            'roi_feat_size': 7,
            'num_classes': num_classes,
            'bbox_coder': coder(0.1, 0.1, 0.2, 0.2),
            'reg_class_agnostic': False,
            'reg_decoded_bbox': True,
            'loss_cls': cross_entropy(use_sigmoid=False),
            'loss_bbox': weighted('GIoULoss', 10 * CO_WEIGHT),
        },
    }


def bbox_head(num_classes: int) -> dict:
    """The ATSS co-head."""
    return {
        'type': 'CoATSSHead',
        'num_classes': num_classes,
        'in_channels': 256,
        'stacked_convs': 1,
        'feat_channels': 256,
        'anchor_generator': {
            'type': 'AnchorGenerator',
            'ratios': [1.0],
            'octave_base_scale': 8,
            'scales_per_octave': 1,
            'strides': STRIDES,
        },
        'bbox_coder': coder(0.1, 0.1, 0.2, 0.2),
        'loss_cls': {
            'type': 'FocalLoss',
            'use_sigmoid': True,
            'gamma': 2.0,
            'alpha': 0.25,
            'loss_weight': CO_WEIGHT,
        },
        'loss_bbox': weighted('GIoULoss', 2 * CO_WEIGHT),
        'loss_centerness': cross_entropy(use_sigmoid=True),
    }


def costs() -> list[dict]:
    """Matching costs: class, box, IoU."""
    return [
        {'type': 'FocalLossCost', 'weight': 2.0},
        {'type': 'BBoxL1Cost', 'weight': 5.0, 'box_format': 'xywh'},
        {'type': 'IoUCost', 'iou_mode': 'giou', 'weight': 2.0},
    ]


def train_cfg() -> list:
    """Training settings by position."""
    unused = {'pos_weight': -1, 'debug': False}
    rpn = {
        'assigner': max_iou_assigner(0.7, 0.3, True),
        'sampler': sampler(256, 0.5, False),
        'allowed_border': -1,
        **unused,
    }
    rcnn = {
        'assigner': max_iou_assigner(0.5, 0.5, False),
        'sampler': sampler(512, 0.25, True),
        **unused,
    }
    proposal = nms(0.7, nms_pre=4000, max_per_img=1000, min_bbox_size=0)
    atss = {
        'assigner': {'type': 'ATSSAssigner', 'topk': 9},
        'allowed_border': -1,
        **unused,
    }
    return [
        {'assigner': {'type': 'HungarianAssigner', 'match_costs': costs()}},
        {'rpn': rpn, 'rpn_proposal': proposal, 'rcnn': rcnn},
        atss,
    ]


def settings_for_test() -> list:
    """Test settings by position."""
    return [
        {
            'max_per_img': 300,
            'nms': {'type': 'soft_nms', 'iou_threshold': 0.8},
        },
        {
            'rpn': nms(0.7, nms_pre=1000, max_per_img=1000, min_bbox_size=0),
            'rcnn': nms(0.5, score_thr=0.0, max_per_img=100),
        },
        nms(
            0.6, nms_pre=1000, min_bbox_size=0, score_thr=0.0, max_per_img=100
        ),
    ]


def port_model(
    *, swin: bool = False, lsj: bool = False, num_classes: int = 80
) -> dict:
    """Model section of the mmdetection port."""
    pad = {'type': 'BatchFixedSizePad', 'size': (1024, 1024), 'pad_mask': True}
    channels = [192, 384, 768, 1536] if swin else [256, 512, 1024, 2048]
    return {
        'type': 'CoDETR',
        'use_lsj': lsj,
        'eval_module': 'detr',
        'data_preprocessor': {
            'type': 'DetDataPreprocessor',
            'mean': [123.675, 116.28, 103.53],
            'std': [58.395, 57.12, 57.375],
            'bgr_to_rgb': True,
            'pad_mask': lsj,
            'batch_augments': [pad] if lsj else None,
        },
        'backbone': swin_l() if swin else resnet50(),
        'neck': {
            'type': 'ChannelMapper',
            'in_channels': channels,
            'kernel_size': 1,
            'out_channels': 256,
            'act_cfg': None,
            'norm_cfg': {'type': 'GN', 'num_groups': 32},
            'num_outs': 5,
        },
        'query_head': query_head(num_classes, 6 if swin else 4),
        'rpn_head': rpn_head(),
        'roi_head': [roi_head(num_classes)],
        'bbox_head': [bbox_head(num_classes)],
        'train_cfg': train_cfg(),
        'test_cfg': settings_for_test(),
    }


def original_model(*, swin: bool = False, lsj: bool = False) -> dict:
    """The same model as the original project writes it, for mmdet 2.x."""
    model = port_model(swin=swin)
    for key in ('use_lsj', 'data_preprocessor'):
        del model[key]
    if lsj:
        model['with_attn_mask'] = False
    if swin:
        model['backbone'] = swin_l_v1()
    head = model['query_head']
    head.update(
        num_feature_levels=5,
        sync_cls_avg_factor=True,
        with_box_refine=True,
        mixed_selection=True,
    )
    head['transformer']['with_pos_coord'] = True
    head['dn_cfg'] = {
        'type': 'CdnQueryGenerator',
        'noise_scale': {'label': 0.5, 'box': 1.0},
        'group_cfg': head['dn_cfg']['group_cfg'],
    }
    cls_cost, reg_cost, iou_cost = costs()
    model['train_cfg'][0] = {
        'assigner': {
            'type': 'HungarianAssigner',
            'cls_cost': cls_cost,
            'reg_cost': reg_cost,
            'iou_cost': iou_cost,
        }
    }
    return model
