# RetinaNet on the encoder of mae_vit_mini.py: a pyramid of strides 4 to 32
# from one resolution, and FPN behind it, for shapes.
_base_ = './retinanet_r50_fpn.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.MAEViT',
        arch='mini',
        img_size=128,
        patch_size=8,
        out_type='featmap',
        out_indices=(1, 2, 4, 5),
        # The last checkpoint of mae_vit_mini_shapes.py.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/mae_vit_mini_shapes/epoch_100.pth',
            prefix='backbone.',
        ),
    ),
    neck=[
        dict(
            type='mmseg.Feature2Pyramid',
            embed_dim=96,
            rescales=[2, 1, 0.5, 0.25],
            norm_cfg=dict(type='GN', num_groups=8),
        ),
        dict(
            type='mmdet.FPN',
            in_channels=[96, 96, 96, 96],
            out_channels=96,
            num_outs=5,
        ),
    ],
    bbox_head=dict(
        num_classes=6,
        in_channels=96,
        stacked_convs=2,
        feat_channels=96,
        anchor_generator=dict(strides=[4, 8, 16, 32, 64]),
    ),
)
