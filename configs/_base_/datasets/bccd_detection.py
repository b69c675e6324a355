# BCCD: blood cells under the microscope, 640 x 480, in Pascal VOC's layout:
# Annotations/, ImageSets/Main/, JPEGImages/. The one thing to set is
# data_root. Evaluated as COCO is, mean AP over IoU 0.50 to 0.95.
data_root = 'data/bccd/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

metainfo = dict(
    classes=('RBC', 'WBC', 'Platelets'),
    palette=[(220, 20, 60), (30, 144, 255), (255, 215, 0)],
)

# Two boxes of the set are single points, one of them in val, where even a
# perfect detector could not find it: they are ignored.
filter_cfg = dict(filter_empty_gt=False, min_size=32, bbox_min_size=1)

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
        scales=[(side * 4 // 3, side) for side in range(384, 577, 32)],
        keep_ratio=True,
    ),
    dict(type='mmdet.PackDetInputs', _scope_='mmdet'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.Resize', _scope_='mmdet', scale=(640, 480), keep_ratio=True
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

train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=True),
    dataset=dict(
        type='mmdet.XMLDataset',
        _scope_='mmdet',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='ImageSets/Main/train.txt',
        data_prefix=dict(sub_data_root=''),
        filter_cfg=filter_cfg,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=False),
    dataset=dict(
        type='mmdet.XMLDataset',
        _scope_='mmdet',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='ImageSets/Main/val.txt',
        data_prefix=dict(sub_data_root=''),
        test_mode=False,  # XMLDataset allows no bbox_min_size otherwise
        filter_cfg=filter_cfg,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='mmext.CocoMetric', _scope_='mmdet', metric='bbox')
test_evaluator = val_evaluator
