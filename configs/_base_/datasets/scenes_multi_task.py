# Generated rooms with class, depth and normals, at the size they were drawn.
# Make them with
#   python tools/make_scenes_dataset.py --out data/scenes
# The one thing to set is data_root.
data_root = 'data/scenes/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root
scale = (128, 96)  # width and height

train_pipeline = [
    dict(type='mmext.LoadMultiTaskAnnotations', _scope_='mmseg'),
    # Names the file of labels that are no class, in the process that loads
    # it: no step is begun with them.
    dict(type='mmext.ValidateLabels', _scope_='mmseg', num_classes=6),
    dict(type='mmext.MultiTaskResize', _scope_='mmseg', scale=scale),
    dict(type='mmext.MultiTaskRandomFlip', _scope_='mmseg', prob=0.5),
    dict(type='mmext.PackMultiTaskInputs', _scope_='mmseg'),
]
test_pipeline = [
    dict(type='mmext.LoadMultiTaskAnnotations', _scope_='mmseg'),
    dict(type='mmext.MultiTaskResize', _scope_='mmseg', scale=scale),
    dict(type='mmext.PackMultiTaskInputs', _scope_='mmseg'),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', _scope_='mmseg', shuffle=True),
    dataset=dict(
        type='mmext.ScenesMultiTaskDataset',
        _scope_='mmseg',
        data_root=data_root,
        data_prefix=dict(split='train/'),
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
        type='mmext.ScenesMultiTaskDataset',
        _scope_='mmseg',
        data_root=data_root,
        data_prefix=dict(split='val/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

# baseline=dict(...) of single-task models adds delta_m.
val_evaluator = dict(
    type='mmext.MultiTaskEvaluator',
    _scope_='mmseg',
    metrics=[
        dict(
            type='mmseg.IoUMetric',
            iou_metrics=['mIoU'],
            prefix='semantic',
        ),
        dict(type='mmext.DepthMetric'),
        dict(type='mmext.SurfaceNormalMetric'),
    ],
)
test_evaluator = val_evaluator
