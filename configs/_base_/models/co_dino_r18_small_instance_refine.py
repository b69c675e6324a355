_base_ = './co_dino_r18_small.py'

# Masks as the public -Inst models have them: a head of its own learns on the
# boxes of the query head, refines its masks in stages, and predicts how good
# they are. Loss weights are the usual ones times 4, as of the co-heads.
model = dict(
    data_preprocessor=dict(pad_mask=True, mask_pad_value=0),
    # False detects boxes only.
    eval_masks=True,
    mask_head=dict(
        type='mmext.QueryMaskHead',
        mask_roi_extractor=dict(
            type='mmdet.SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=8, sampling_ratio=0),
            out_channels=128,
            featmap_strides=[8, 16, 32, 64],
            finest_scale=56,
        ),
        mask_head=dict(
            type='mmext.RefineMaskHead',
            in_channels=128,
            conv_out_channels=64,
            # Of the first of the encoder's maps.
            semantic_stride=8,
            stage_sizes=[8, 16, 32],
            stage_loss_weights=[0.5, 0.75, 1.0],
            loss_weight=5.32,
        ),
        mask_iou_head=dict(
            type='mmext.CoMaskIoUHead',
            num_convs=2,
            num_fcs=1,
            roi_feat_size=8,
            in_channels=128,
            conv_out_channels=64,
            fc_out_channels=128,
            loss_iou=dict(type='mmdet.MSELoss', loss_weight=2.0),
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
                num=64,
                pos_fraction=0.25,
                neg_pos_ub=-1,
                add_gt_as_proposals=True,
            ),
        ),
    ),
    test_cfg=dict(mask_head=dict(mask_thr_binary=0.5)),
)
