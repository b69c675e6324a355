# COCO boxes with the multi-scale augmentation of DETR, as in the public
# CO-DINO configs without LSJ. The one thing to set is data_root.
data_root = 'data/coco/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

# One side of the picture is at most the one number, the other at most the
# other, in pixels.
train_scales = [(side, 1333) for side in range(480, 801, 32)]

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
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.Resize',
        _scope_='mmdet',
        scale=(1333, 800),
        keep_ratio=True,
    ),
    # After the resize, since boxes are compared in the original picture.
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
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=True),
    dataset=dict(
        type='mmdet.CocoDataset',
        _scope_='mmdet',
        data_root=data_root,
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        filter_cfg=dict(filter_empty_gt=False, min_size=32),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=False),
    dataset=dict(
        type='mmdet.CocoDataset',
        _scope_='mmdet',
        data_root=data_root,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

# The file, and not the loaded boxes, since COCO's areas are those of masks.
val_evaluator = dict(
    type='mmext.CocoMetric',
    _scope_='mmdet',
    ann_file=data_root + 'annotations/instances_val2017.json',
    metric='bbox',
)
test_evaluator = val_evaluator
