# CO-DINO with a ResNet-50 on five scales: DETR head, plus a Faster R-CNN and
# an ATSS head that only train the encoder and feed their positives to the
# decoder as extra queries.
#
# The co-heads' loss weights are the heads' usual ones times 12, which is
# 6 decoder layers x lambda_2 = 2: the decoder adds up one loss per layer, a
# co-head has only one. They are written out because a config variable that is
# redefined in a child config would not change what was computed from it here.
model = dict(
    type='mmext.CoDETR',
    _scope_='mmdet',
    num_classes=80,
    # Masks, reference points and boxes refer to the image without padding.
    mask_policy='valid',
    eval_module='detr',
    data_preprocessor=dict(
        type='mmdet.DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        # No multiple of 32: every map is masked, so padding only costs time.
        pad_size_divisor=1,
        pad_mask=False,
        batch_augments=None,
    ),
    backbone=dict(
        type='mmdet.ResNet',
        depth=50,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        frozen_stages=1,
        # BN that keeps no activations while it is frozen.
        norm_cfg=dict(
            type='mmext.MemoryEfficientBatchNorm', requires_grad=False
        ),
        norm_eval=True,
        style='pytorch',
        # True, or a number of leading blocks, checkpoints activations. They
        # are never reentrant: no setting of DDP has to change with them.
        with_cp=False,
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
    ),
    neck=dict(
        type='mmdet.ChannelMapper',
        in_channels=[256, 512, 1024, 2048],
        kernel_size=1,
        out_channels=256,
        act_cfg=None,
        norm_cfg=dict(type='GN', num_groups=32),
        num_outs=5,
    ),
    query_head=dict(
        type='mmext.CoDINOHead',
        num_queries=900,
        max_co_queries=300,
        # Classification losses are divided by the positives of all processes.
        # The public port forgot this, which at one image per GPU is another
        # loss than the one the published weights were trained with.
        sync_cls_avg_factor=True,
        transformer=dict(
            type='mmext.CoDINOTransformer',
            embed_dims=256,
            num_feature_levels=5,
            with_coord_feat=False,
            encoder=dict(
                num_layers=6,
                num_heads=8,
                num_points=4,
                feedforward_channels=2048,
                dropout=0.0,
                # The stride-4 level is 3/4 of the tokens; without
                # checkpoints one layer keeps 1.5 GB per 1024 px image.
                with_cp=4,
            ),
            decoder=dict(
                num_layers=6,
                num_heads=8,
                num_points=4,
                feedforward_channels=2048,
                dropout=0.0,
                # Queries are few next to the encoder's tokens.
                with_cp=False,
            ),
        ),
        positional_encoding=dict(
            type='mmdet.SinePositionalEncoding',
            num_feats=128,
            temperature=20,
            normalize=True,
        ),
        dn_cfg=dict(
            label_noise_scale=0.5,
            box_noise_scale=1.0,
            group_cfg=dict(dynamic=True, num_groups=None, num_dn_queries=100),
        ),
        # DINO has a focal loss here; the IoU of a match is a better target.
        loss_cls=dict(
            type='mmdet.QualityFocalLoss',
            use_sigmoid=True,
            beta=2.0,
            loss_weight=1.0,
        ),
        loss_bbox=dict(type='mmdet.L1Loss', loss_weight=5.0),
        loss_iou=dict(type='mmdet.GIoULoss', loss_weight=2.0),
    ),
    rpn_head=dict(
        type='mmdet.RPNHead',
        in_channels=256,
        feat_channels=256,
        # The encoder returns the five levels and one more, of stride 128.
        anchor_generator=dict(
            type='mmdet.AnchorGenerator',
            octave_base_scale=4,
            scales_per_octave=3,
            ratios=[0.5, 1.0, 2.0],
            strides=[4, 8, 16, 32, 64, 128],
        ),
        bbox_coder=dict(
            type='mmdet.DeltaXYWHBBoxCoder',
            target_means=[0.0, 0.0, 0.0, 0.0],
            target_stds=[1.0, 1.0, 1.0, 1.0],
        ),
        loss_cls=dict(
            type='mmdet.CrossEntropyLoss', use_sigmoid=True, loss_weight=12.0
        ),
        loss_bbox=dict(type='mmdet.L1Loss', loss_weight=12.0),
    ),
    # One head of each kind, as a dict so that a child config can change a
    # part of it; several are given as a list.
    roi_head=dict(
        type='mmext.CoStandardRoIHead',
        bbox_roi_extractor=dict(
            type='mmdet.SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=7, sampling_ratio=0),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32, 64],
            finest_scale=56,
        ),
        bbox_head=dict(
            type='mmdet.Shared2FCBBoxHead',
            in_channels=256,
            fc_out_channels=1024,
            roi_feat_size=7,
            bbox_coder=dict(
                type='mmdet.DeltaXYWHBBoxCoder',
                target_means=[0.0, 0.0, 0.0, 0.0],
                target_stds=[0.1, 0.1, 0.2, 0.2],
            ),
            reg_class_agnostic=False,
            # A GIoU loss needs boxes, not deltas.
            reg_decoded_bbox=True,
            loss_cls=dict(
                type='mmdet.CrossEntropyLoss',
                use_sigmoid=False,
                loss_weight=12.0,
            ),
            loss_bbox=dict(type='mmdet.GIoULoss', loss_weight=120.0),
        ),
    ),
    bbox_head=dict(
        type='mmext.CoATSSHead',
        in_channels=256,
        stacked_convs=1,
        feat_channels=256,
        anchor_generator=dict(
            type='mmdet.AnchorGenerator',
            ratios=[1.0],
            octave_base_scale=8,
            scales_per_octave=1,
            strides=[4, 8, 16, 32, 64, 128],
        ),
        bbox_coder=dict(
            type='mmdet.DeltaXYWHBBoxCoder',
            target_means=[0.0, 0.0, 0.0, 0.0],
            target_stds=[0.1, 0.1, 0.2, 0.2],
        ),
        loss_cls=dict(
            type='mmdet.FocalLoss',
            use_sigmoid=True,
            gamma=2.0,
            alpha=0.25,
            loss_weight=12.0,
        ),
        loss_bbox=dict(type='mmdet.GIoULoss', loss_weight=24.0),
        loss_centerness=dict(
            type='mmdet.CrossEntropyLoss', use_sigmoid=True, loss_weight=12.0
        ),
    ),
    train_cfg=dict(
        query_head=dict(
            assigner=dict(
                type='mmdet.HungarianAssigner',
                match_costs=[
                    dict(type='mmdet.FocalLossCost', weight=2.0),
                    dict(
                        type='mmdet.BBoxL1Cost', weight=5.0, box_format='xywh'
                    ),
                    dict(type='mmdet.IoUCost', iou_mode='giou', weight=2.0),
                ],
            )
        ),
        rpn_head=dict(
            assigner=dict(
                type='mmdet.MaxIoUAssigner',
                pos_iou_thr=0.7,
                neg_iou_thr=0.3,
                min_pos_iou=0.3,
                match_low_quality=True,
                ignore_iof_thr=-1,
            ),
            sampler=dict(
                type='mmdet.RandomSampler',
                num=256,
                pos_fraction=0.5,
                neg_pos_ub=-1,
                add_gt_as_proposals=False,
            ),
            allowed_border=-1,
            pos_weight=-1,
        ),
        rpn_proposal=dict(
            nms_pre=4000,
            max_per_img=1000,
            nms=dict(type='nms', iou_threshold=0.7),
            min_bbox_size=0,
        ),
        roi_head=dict(
            assigner=dict(
                type='mmdet.MaxIoUAssigner',
                pos_iou_thr=0.5,
                neg_iou_thr=0.5,
                min_pos_iou=0.5,
                match_low_quality=False,
                ignore_iof_thr=-1,
            ),
            sampler=dict(
                type='mmdet.RandomSampler',
                num=512,
                pos_fraction=0.25,
                neg_pos_ub=-1,
                add_gt_as_proposals=True,
            ),
            pos_weight=-1,
        ),
        bbox_head=dict(
            assigner=dict(type='mmdet.ATSSAssigner', topk=9),
            allowed_border=-1,
            pos_weight=-1,
        ),
    ),
    test_cfg=dict(
        # Soft-NMS on the DETR head is worth 0.2 AP on COCO.
        query_head=dict(
            max_per_img=300, nms=dict(type='soft_nms', iou_threshold=0.8)
        ),
        rpn_head=dict(
            nms_pre=1000,
            max_per_img=1000,
            nms=dict(type='nms', iou_threshold=0.7),
            min_bbox_size=0,
        ),
        roi_head=dict(
            score_thr=0.0,
            nms=dict(type='nms', iou_threshold=0.5),
            max_per_img=100,
        ),
        bbox_head=dict(
            nms_pre=1000,
            min_bbox_size=0,
            score_thr=0.0,
            nms=dict(type='nms', iou_threshold=0.6),
            max_per_img=100,
        ),
    ),
)
