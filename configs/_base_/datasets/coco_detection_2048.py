# COCO boxes as the public Swin-L config that starts from Objects365 has them:
# short sides of 480 to 1536, tested at 2048 x 1280, one picture per GPU.
_base_ = './coco_detection.py'

train_scales = [(side, 2048) for side in range(480, 1537, 32)]

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
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.Resize',
        _scope_='mmdet',
        scale=(2048, 1280),
        keep_ratio=True,
    ),
    dict(type='mmdet.LoadAnnotations', _scope_='mmdet', with_bbox=True),
    dict(
        type='mmdet.PackDetInputs',
        _scope_='mmdet',
        meta_keys=(
            'img_id',
            'img_path',
            'ori_shape',
            'img_shape',
            'scale_factor',
        ),
    ),
]

train_dataloader = dict(
    batch_size=1, num_workers=2, dataset=dict(pipeline=train_pipeline)
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
