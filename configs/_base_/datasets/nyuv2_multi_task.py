# The public pre-processed NYUv2: 13 classes, depth and normals of 288 x 384
# pixels in {train,val}/{image,label,depth,normal}/{i}.npy. The val split is
# what papers report as test. Check a copy with
#   python tools/validate_labels.py data/nyuv2
# The one thing to set is data_root.
data_root = 'data/nyuv2/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_pipeline = [
    dict(type='mmext.LoadMultiTaskAnnotations', _scope_='mmseg'),
    # Names the file of labels that are no class, in the process that loads
    # it: no step is begun with them.
    dict(type='mmext.ValidateLabels', _scope_='mmseg', num_classes=13),
    # Papers with a ResNet often train without these two.
    dict(type='mmext.MultiTaskRandomScaleCrop', _scope_='mmseg'),
    dict(type='mmext.MultiTaskRandomFlip', _scope_='mmseg', prob=0.5),
    dict(type='mmext.PackMultiTaskInputs', _scope_='mmseg'),
]
test_pipeline = [
    dict(type='mmext.LoadMultiTaskAnnotations', _scope_='mmseg'),
    dict(type='mmext.PackMultiTaskInputs', _scope_='mmseg'),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', _scope_='mmseg', shuffle=True),
    dataset=dict(
        type='mmext.NYUv2MultiTaskDataset',
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
        type='mmext.NYUv2MultiTaskDataset',
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
