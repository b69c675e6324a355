_base_ = './co_dino_5scale_swin_l.py'

# As co_dino_5scale_r50_lsj.py, on the larger canvas of the Swin-L models.
model = dict(
    mask_policy='canvas',
    data_preprocessor=dict(
        batch_augments=[
            dict(
                type='mmdet.BatchFixedSizePad',
                size=(1280, 1280),
                pad_mask=False,
            )
        ]
    ),
)
