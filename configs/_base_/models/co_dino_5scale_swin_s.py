_base_ = './co_dino_5scale_swin_t.py'

model = dict(
    backbone=dict(
        depths=[2, 2, 18, 2],
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/'
            'download/v1.0.0/swin_small_patch4_window7_224.pth'
        ),
    )
)
