# Linear probe: one linear layer for each patch on the frozen encoder of
# mae_vit_mini_shapes.py says how much of the classes its features hold.
_base_ = './mae_vit_mini_semantic_shapes.py'

model = dict(
    # All six layers and the norm.
    backbone=dict(frozen_stages=6, out_indices=(5,)),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type='mmext.FCNHead',
        in_channels=96,
        channels=96,
        in_index=0,
        num_convs=0,
        concat_input=False,
        dropout_ratio=0,
        num_classes=7,
        align_corners=False,
        loss_decode=dict(type='mmext.CheckedCrossEntropyLoss'),
    ),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    _scope_='mmseg',
    constructor='mmext.MergedOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-2, weight_decay=0.0),
)
