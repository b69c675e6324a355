_base_ = './co_deformable_detr_swin_b_8xb2_1x_coco.py'

model = dict(
    backbone=dict(
        embed_dims=192,
        num_heads=[6, 12, 24, 48],
        drop_path_rate=0.3,
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/'
            'download/v1.0.0/swin_large_patch4_window12_384_22k.pth'
        ),
    ),
    neck=dict(in_channels=[384, 768, 1536]),
)
