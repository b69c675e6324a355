_base_ = './co_dino_5scale_r50_lvis.py'

# The canvas of co_dino_5scale_r50_lsj.py.
model = dict(
    mask_policy='canvas',
    data_preprocessor=dict(
        batch_augments=[
            dict(
                type='mmdet.BatchFixedSizePad',
                size=(1024, 1024),
                pad_mask=False,
            )
        ]
    ),
)
