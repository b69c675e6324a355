_base_ = './co_dino_r18_small.py'

# The same detector on the encoder of mae_vit_mini.py: one map of stride 8, of
# which the neck makes four of the strides 4 to 32.
model = dict(
    # The maps are whole; masks leave the padding out.
    data_preprocessor=dict(pad_size_divisor=32),
    backbone=dict(
        _delete_=True,
        type='mmext.MAEViT',
        arch='mini',
        img_size=128,
        patch_size=8,
        out_type='featmap',
        # All layers and the norm: only what is behind them learns.
        frozen_stages=6,
        # The last checkpoint of mae_vit_mini_shapes.py.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/mae_vit_mini_shapes/epoch_100.pth',
            prefix='backbone.',
        ),
    ),
    neck=dict(
        _delete_=True,
        type='mmext.SimpleFeaturePyramid',
        in_channels=[96],
        out_channels=128,
        num_outs=4,
    ),
    rpn_head=dict(anchor_generator=dict(strides=[4, 8, 16, 32, 64])),
    roi_head=dict(bbox_roi_extractor=dict(featmap_strides=[4, 8, 16, 32])),
    bbox_head=dict(anchor_generator=dict(strides=[4, 8, 16, 32, 64])),
)
