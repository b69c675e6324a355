# Parts of the generated shapes without their labels, at about the size that
# they were drawn. Make them with
#   python tools/make_shapes_dataset.py --out data/shapes
# The one thing to set is data_root.
data_root = 'data/shapes/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmext.RandomResizedCrop',
        _scope_='mmdet',
        scale=64,
        area=(0.15, 0.5),
    ),
    dict(
        type='mmdet.RandomFlip',
        _scope_='mmdet',
        prob=[0.3, 0.3],
        direction=['horizontal', 'vertical'],
    ),
    dict(type='mmext.PackImages', _scope_='mmdet'),
]

train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    # All steps have a whole batch, which the learning rate is for.
    drop_last=True,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=True),
    dataset=dict(
        type='mmext.UnlabelledImages',
        _scope_='mmdet',
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/train/'),
        pipeline=train_pipeline,
    ),
)
