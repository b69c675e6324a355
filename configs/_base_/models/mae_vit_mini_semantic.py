# The encoder of mae_vit_mini.py with a pyramid of four resolutions, from
# layers 2, 3, 5 and 6, and the head of SegFormer, for shapes.
model = dict(
    type='mmseg.EncoderDecoder',
    _scope_='mmseg',
    data_preprocessor=dict(
        type='mmseg.SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(128, 128),
    ),
    backbone=dict(
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
    neck=dict(
        type='mmseg.Feature2Pyramid',
        embed_dim=96,
        rescales=[2, 1, 0.5, 0.25],
        norm_cfg=dict(type='GN', num_groups=8),
    ),
    decode_head=dict(
        type='mmext.SegformerHead',
        in_channels=[96, 96, 96, 96],
        in_index=[0, 1, 2, 3],
        channels=96,
        dropout_ratio=0.1,
        num_classes=7,
        norm_cfg=dict(type='GN', num_groups=8),
        align_corners=False,
        loss_decode=dict(type='mmext.CheckedCrossEntropyLoss'),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
