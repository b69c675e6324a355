# Masks as the public -Inst models have them, which a detector adds to what it
# is: `model = _base_.pop('refine_masks')`. Loss weights are the usual ones
# times 12, as of the co-heads.
refine_masks = dict(
    data_preprocessor=dict(pad_mask=True, mask_pad_value=0),
    # False detects boxes only.
    eval_masks=True,
    mask_head=dict(
        type='mmext.QueryMaskHead',
        mask_roi_extractor=dict(
            type='mmdet.SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=14, sampling_ratio=0),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32, 64],
            finest_scale=56,
        ),
        mask_head=dict(
            type='mmext.RefineMaskHead',
            in_channels=256,
            conv_out_channels=256,
            # Of the first of the encoder's maps.
            semantic_stride=4,
            stage_sizes=[14, 28, 56, 112],
            stage_loss_weights=[0.5, 0.75, 0.75, 1.0],
            loss_weight=12.0,
        ),
        mask_iou_head=dict(
            type='mmext.CoMaskIoUHead',
            num_convs=2,
            num_fcs=1,
            roi_feat_size=14,
            in_channels=256,
            conv_out_channels=256,
            fc_out_channels=1024,
            loss_iou=dict(type='mmdet.MSELoss', loss_weight=6.0),
        ),
    ),
    train_cfg=dict(
        mask_head=dict(
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
        ),
    ),
    test_cfg=dict(mask_head=dict(mask_thr_binary=0.5)),
)
