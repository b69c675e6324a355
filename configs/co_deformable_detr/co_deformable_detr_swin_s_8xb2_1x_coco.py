_base_ = './co_deformable_detr_swin_t_8xb2_1x_coco.py'

model = dict(
    backbone=dict(
        depths=[2, 2, 18, 2],
        # 0.2 for 12 epochs, 0.4 for 36.
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/'
            'download/v1.0.0/swin_small_patch4_window7_224.pth'
        ),
    )
)
