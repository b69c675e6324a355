# The generated shapes, a class per pixel, at the size they were drawn. Make
# them with
#   python tools/make_shapes_dataset.py --out data/shapes
# The one thing to set is data_root.
data_root = 'data/shapes/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(type='LoadAnnotations', _scope_='mmseg'),
    # Names the file of labels that are no class, in the process that loads
    # it: no step is begun with them.
    dict(type='mmext.ValidateLabels', _scope_='mmseg', num_classes=7),
    # A shape upside down is the same shape.
    dict(
        type='mmseg.RandomFlip',
        _scope_='mmseg',
        prob=[0.3, 0.3],
        direction=['horizontal', 'vertical'],
    ),
    # PIDNet learns the edges, too. Other models do not look at them.
    dict(type='mmseg.GenerateEdge', _scope_='mmseg', edge_width=2),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', _scope_='mmseg', shuffle=True),
    dataset=dict(
        type='mmext.ShapesSegDataset',
        _scope_='mmseg',
        data_root=data_root,
        data_prefix=dict(
            img_path='img_dir/train/', seg_map_path='ann_dir/train/'
        ),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', _scope_='mmseg', shuffle=False),
    dataset=dict(
        type='mmext.ShapesSegDataset',
        _scope_='mmseg',
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/val/', seg_map_path='ann_dir/val/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(
    type='mmseg.IoUMetric', _scope_='mmseg', iou_metrics=['mIoU']
)
test_evaluator = val_evaluator
