# BCCD at half its resolution, for CPUs: a platelet still spans 20 pixels.
_base_ = './bccd_detection.py'

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(type='mmdet.LoadAnnotations', _scope_='mmdet', with_bbox=True),
    # There is no up or down under a microscope.
    dict(
        type='mmdet.RandomFlip',
        _scope_='mmdet',
        prob=[0.25, 0.25, 0.25],
        direction=['horizontal', 'vertical', 'diagonal'],
    ),
    dict(
        type='RandomChoiceResize',
        _scope_='mmdet',
        resize_type='mmdet.Resize',
        scales=[(side * 4 // 3, side) for side in range(192, 289, 24)],
        keep_ratio=True,
    ),
    dict(type='mmdet.PackDetInputs', _scope_='mmdet'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.Resize', _scope_='mmdet', scale=(320, 240), keep_ratio=True
    ),
    dict(type='mmdet.LoadAnnotations', _scope_='mmdet', with_bbox=True),
    # The evaluator takes its ground truth from 'instances'.
    dict(
        type='mmdet.PackDetInputs',
        _scope_='mmdet',
        meta_keys=(
            'img_id',
            'img_path',
            'ori_shape',
            'img_shape',
            'scale_factor',
            'instances',
        ),
    ),
]

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
