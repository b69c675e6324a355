_base_ = './co_dino_5scale_r50.py'

# A CO-DINO with every part of the real one that trains from nothing on CPUs:
# a thin ResNet-18, no stride-4 level, half the channels, one encoder layer and
# two decoder layers.
# Co-head loss weights are the usual ones times 4: 2 layers x lambda_2 = 2.
model = dict(
    backbone=dict(
        depth=18,
        base_channels=32,
        stem_channels=32,
        out_indices=(1, 2, 3),
        frozen_stages=-1,
        # Small batches, and running statistics would differ per process while
        # a checkpoint holds those of one.
        norm_cfg=dict(_delete_=True, type='GN', num_groups=8),
        norm_eval=False,
        init_cfg=None,
    ),
    neck=dict(in_channels=[64, 128, 256], out_channels=128, num_outs=4),
    query_head=dict(
        num_queries=30,
        max_co_queries=20,
        transformer=dict(
            embed_dims=128,
            num_feature_levels=4,
            # Small enough to keep all activations.
            encoder=dict(
                num_layers=1, feedforward_channels=256, with_cp=False
            ),
            decoder=dict(num_layers=2, feedforward_channels=256),
        ),
        positional_encoding=dict(num_feats=64),
        dn_cfg=dict(group_cfg=dict(num_dn_queries=20)),
    ),
    rpn_head=dict(
        in_channels=128,
        feat_channels=128,
        anchor_generator=dict(strides=[8, 16, 32, 64, 128]),
        loss_cls=dict(loss_weight=4.0),
        loss_bbox=dict(loss_weight=4.0),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(
            out_channels=128, featmap_strides=[8, 16, 32, 64]
        ),
        bbox_head=dict(
            in_channels=128,
            fc_out_channels=256,
            loss_cls=dict(loss_weight=4.0),
            loss_bbox=dict(loss_weight=40.0),
        ),
    ),
    bbox_head=dict(
        in_channels=128,
        feat_channels=128,
        anchor_generator=dict(
            octave_base_scale=4, strides=[8, 16, 32, 64, 128]
        ),
        loss_cls=dict(loss_weight=4.0),
        loss_bbox=dict(loss_weight=8.0),
        loss_centerness=dict(loss_weight=4.0),
    ),
    train_cfg=dict(
        rpn_head=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=100, max_per_img=50),
        roi_head=dict(sampler=dict(num=32)),
    ),
    test_cfg=dict(
        query_head=dict(max_per_img=100),
        rpn_head=dict(nms_pre=300, max_per_img=100),
    ),
)
