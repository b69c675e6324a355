# The generated shapes at the size they were drawn. Make them with
#   python tools/make_shapes_dataset.py --out data/shapes
# The one thing to set is data_root.
data_root = 'data/shapes/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(type='mmdet.LoadAnnotations', _scope_='mmdet', with_bbox=True),
    # Keeps the size; it is here for the scale_factor that heads read.
    dict(
        type='mmdet.Resize', _scope_='mmdet', scale_factor=1.0, keep_ratio=True
    ),
    # A shape upside down is the same shape.
    dict(
        type='mmdet.RandomFlip',
        _scope_='mmdet',
        prob=[0.3, 0.3],
        direction=['horizontal', 'vertical'],
    ),
    dict(type='mmdet.PackDetInputs', _scope_='mmdet'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.Resize', _scope_='mmdet', scale_factor=1.0, keep_ratio=True
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

# To read pictures this small takes less than to hand them from process to
# process.
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=True),
    dataset=dict(
        type='mmext.ShapesDataset',
        _scope_='mmdet',
        data_root=data_root,
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/'),
        filter_cfg=dict(filter_empty_gt=False),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    drop_last=False,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=False),
    dataset=dict(
        type='mmext.ShapesDataset',
        _scope_='mmdet',
        data_root=data_root,
        ann_file='annotations/val.json',
        data_prefix=dict(img='img_dir/val/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(
    type='mmext.CocoMetric',
    _scope_='mmdet',
    ann_file=data_root + 'annotations/val.json',
    metric='bbox',
)
test_evaluator = val_evaluator
