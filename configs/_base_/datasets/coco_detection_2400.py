# COCO boxes as the public ViT-L config has them: short sides of 480 to 1536,
# long ones up to 2400, tested at 2048 x 1280, one picture per GPU.
_base_ = './coco_detection_2048.py'

train_scales = [(side, 2400) for side in range(480, 1537, 32)]

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(type='mmdet.LoadAnnotations', _scope_='mmdet', with_bbox=True),
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
