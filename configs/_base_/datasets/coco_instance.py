# COCO boxes and masks with the multi-scale augmentation of DETR; the pictures
# are those of coco_detection.py. The one thing to set is data_root.
_base_ = './coco_detection.py'

# One side of the picture is at most the one number, the other at most the
# other, in pixels.
train_scales = [(side, 1333) for side in range(480, 801, 32)]

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.LoadAnnotations',
        _scope_='mmdet',
        with_bbox=True,
        with_mask=True,
    ),
    dict(type='mmdet.RandomFlip', _scope_='mmdet', prob=0.5),
    dict(
        type='RandomChoice',
        _scope_='mmdet',
        transforms=[
            [
                dict(
                    type='RandomChoiceResize',
                    resize_type='mmdet.Resize',
                    scales=train_scales,
                    keep_ratio=True,
                )
            ],
            [
                dict(
                    type='RandomChoiceResize',
                    resize_type='mmdet.Resize',
                    # 4200 never limits: no picture of COCO is so elongated.
                    scales=[(400, 4200), (500, 4200), (600, 4200)],
                    keep_ratio=True,
                ),
                dict(
                    type='mmdet.RandomCrop',
                    crop_type='absolute_range',
                    crop_size=(384, 600),
                    allow_negative_crop=True,
                ),
                dict(
                    type='RandomChoiceResize',
                    resize_type='mmdet.Resize',
                    scales=train_scales,
                    keep_ratio=True,
                ),
            ],
        ],
    ),
    dict(type='mmdet.PackDetInputs', _scope_='mmdet'),
]

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

# Masks are compared with those of the annotation file.
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
