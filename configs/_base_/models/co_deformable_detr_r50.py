_base_ = './co_dino_4scale_r50.py'

# Co-Deformable-DETR: the same detector with another query head, fewer queries
# and no denoising.
model = dict(
    query_head=dict(
        _delete_=True,
        type='mmext.CoDeformDETRHead',
        num_queries=300,
        max_co_queries=300,
        sync_cls_avg_factor=True,
        transformer=dict(
            type='mmext.CoDeformableTransformer',
            embed_dims=256,
            num_feature_levels=4,
            with_coord_feat=True,
            encoder=dict(
                num_layers=6,
                num_heads=8,
                num_points=4,
                feedforward_channels=2048,
                dropout=0.0,
                # A layer keeps 0.4 GB per 1024 px image.
                with_cp=False,
            ),
            decoder=dict(
                num_layers=6,
                num_heads=8,
                num_points=4,
                feedforward_channels=2048,
                dropout=0.0,
                with_cp=False,
            ),
        ),
        positional_encoding=dict(
            type='mmdet.SinePositionalEncoding',
            num_feats=128,
            normalize=True,
            # At the centres of the pixels; the weights were trained so.
            offset=-0.5,
        ),
        loss_cls=dict(
            type='mmdet.FocalLoss',
            use_sigmoid=True,
            gamma=2.0,
            alpha=0.25,
            loss_weight=2.0,
        ),
        loss_bbox=dict(type='mmdet.L1Loss', loss_weight=5.0),
        loss_iou=dict(type='mmdet.GIoULoss', loss_weight=2.0),
    ),
    # Without NMS, which the published numbers are not with either.
    test_cfg=dict(query_head=dict(_delete_=True, max_per_img=100)),
)
