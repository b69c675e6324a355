_base_ = './co_dino_4scale_r50.py'

# Another query head: it has no denoising, makes the positions of the queries
# once, from the best boxes of the encoder, and ranks tokens by one class.
model = dict(
    query_head=dict(
        type='mmext.CoDeformDETRHead',
        num_queries=300,
        transformer=dict(
            type='mmext.CoDeformableTransformer', with_coord_feat=True
        ),
        positional_encoding=dict(temperature=10000, offset=-0.5),
        dn_cfg=None,
        loss_cls=dict(
            _delete_=True,
            type='mmdet.FocalLoss',
            use_sigmoid=True,
            gamma=2.0,
            alpha=0.25,
            loss_weight=2.0,
        ),
    ),
    # Without NMS, as the published numbers are.
    test_cfg=dict(query_head=dict(max_per_img=100, nms=None)),
)
