_base_ = '../co_dino/co_dino_r18_shapes.py'

# What _base_/models/co_deformable_detr_r50.py changes, on the small model.
model = dict(
    query_head=dict(
        type='mmext.CoDeformDETRHead',
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
    test_cfg=dict(query_head=dict(nms=None)),
)
