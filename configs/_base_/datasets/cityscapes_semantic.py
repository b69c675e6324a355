# Cityscapes: streets at 2048 x 1024, 19 classes, 255 is ignored. The labels
# are *_gtFine_labelTrainIds.png, which cityscapesscripts makes from the
# original ids. Needs a registration: https://www.cityscapes-dataset.com
data_root = 'data/cityscapes/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(
        type='RandomResize',
        _scope_='mmseg',
        resize_type='mmseg.Resize',
        scale=(2048, 1024),
        ratio_range=(0.5, 2.0),
        keep_ratio=True,
    ),
    dict(
        type='mmseg.RandomCrop',
        _scope_='mmseg',
        crop_size=(1024, 1024),
        cat_max_ratio=0.75,
    ),
    dict(type='mmseg.RandomFlip', _scope_='mmseg', prob=0.5),
    dict(type='mmseg.PhotoMetricDistortion', _scope_='mmseg'),
    # PIDNet learns the edges, too. Other models do not look at them.
    dict(type='mmseg.GenerateEdge', _scope_='mmseg', edge_width=4),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(
        type='mmseg.Resize',
        _scope_='mmseg',
        scale=(2048, 1024),
        keep_ratio=True,
    ),
    # After Resize: predictions are compared at the original size.
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]

train_dataloader = dict(
    batch_size=6,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', _scope_='mmseg', shuffle=True),
    dataset=dict(
        type='mmseg.CityscapesDataset',
        _scope_='mmseg',
        data_root=data_root,
        data_prefix=dict(
            img_path='leftImg8bit/train', seg_map_path='gtFine/train'
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
        type='mmseg.CityscapesDataset',
        _scope_='mmseg',
        data_root=data_root,
        data_prefix=dict(
            img_path='leftImg8bit/val', seg_map_path='gtFine/val'
        ),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(
    type='mmseg.IoUMetric', _scope_='mmseg', iou_metrics=['mIoU']
)
test_evaluator = val_evaluator
