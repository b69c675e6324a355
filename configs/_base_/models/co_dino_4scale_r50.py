_base_ = './co_dino_5scale_r50.py'

# Without the level of stride 4, which holds three of four tokens.
model = dict(
    backbone=dict(out_indices=(1, 2, 3)),
    neck=dict(in_channels=[512, 1024, 2048], num_outs=4),
    query_head=dict(
        transformer=dict(
            num_feature_levels=4,
            # A layer keeps 0.4 GB per 1024 px image.
            encoder=dict(with_cp=False),
        )
    ),
    rpn_head=dict(anchor_generator=dict(strides=[8, 16, 32, 64, 128])),
    roi_head=dict(
        bbox_roi_extractor=dict(
            featmap_strides=[8, 16, 32, 64],
            # Twice as large, so that every box but the small ones is pooled
            # from the level that it has with five.
            finest_scale=112,
        )
    ),
    bbox_head=dict(anchor_generator=dict(strides=[8, 16, 32, 64, 128])),
)
