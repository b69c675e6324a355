# ADE20K: 150 classes at any size. In the files 0 is "other", which becomes
# 255 and is ignored, and 1 to 150 become 0 to 149.
data_root = 'data/ade/ADEChallengeData2016/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(
        type='RandomResize',
        _scope_='mmseg',
        resize_type='mmseg.Resize',
        scale=(2048, 512),
        ratio_range=(0.5, 2.0),
        keep_ratio=True,
    ),
    dict(
        type='mmseg.RandomCrop',
        _scope_='mmseg',
        crop_size=(512, 512),
        cat_max_ratio=0.75,
    ),
    dict(type='mmseg.RandomFlip', _scope_='mmseg', prob=0.5),
    dict(type='mmseg.PhotoMetricDistortion', _scope_='mmseg'),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(
        type='mmseg.Resize',
        _scope_='mmseg',
        scale=(2048, 512),
        keep_ratio=True,
    ),
    # After Resize: predictions are compared at the original size.
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]

train_dataloader = dict(
    batch_size=4,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', _scope_='mmseg', shuffle=True),
    dataset=dict(
        type='mmseg.ADE20KDataset',
        _scope_='mmseg',
        data_root=data_root,
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'
        ),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', _scope_='mmseg', shuffle=False),
    dataset=dict(
        type='mmseg.ADE20KDataset',
        _scope_='mmseg',
        data_root=data_root,
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation',
        ),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(
    type='mmseg.IoUMetric', _scope_='mmseg', iou_metrics=['mIoU']
)
test_evaluator = val_evaluator
