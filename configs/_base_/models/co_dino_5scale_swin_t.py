_base_ = './co_dino_5scale_swin_l.py'

model = dict(
    backbone=dict(
        pretrain_img_size=224,
        embed_dims=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=7,
        drop_path_rate=0.2,
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/'
            'download/v1.0.0/swin_tiny_patch4_window7_224.pth'
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
    # Four layers, as with a ResNet-50.
    query_head=dict(transformer=dict(encoder=dict(with_cp=4))),
)
