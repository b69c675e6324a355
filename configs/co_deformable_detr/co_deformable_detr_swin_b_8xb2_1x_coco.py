_base_ = './co_deformable_detr_swin_s_8xb2_1x_coco.py'

model = dict(
    backbone=dict(
        pretrain_img_size=384,
        embed_dims=128,
        num_heads=[4, 8, 16, 32],
        window_size=12,
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/'
            'download/v1.0.0/swin_base_patch4_window12_384_22k.pth'
        ),
    ),
    neck=dict(in_channels=[256, 512, 1024]),
)
