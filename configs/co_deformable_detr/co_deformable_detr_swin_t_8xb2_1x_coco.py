_base_ = './co_deformable_detr_r50_8xb2_1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmdet.SwinTransformer',
        pretrain_img_size=224,
        embed_dims=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=7,
        # 0.3 for 36 epochs.
        drop_path_rate=0.2,
        out_indices=(1, 2, 3),
        with_cp=False,
        # The file has Microsoft's names and patch-merging order.
        convert_weights=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/SwinTransformer/storage/releases/'
            'download/v1.0.0/swin_tiny_patch4_window7_224.pth',
        ),
    ),
    neck=dict(in_channels=[192, 384, 768]),
)

optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
