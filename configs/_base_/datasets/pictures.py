# Pictures of a folder and of the folders in it, without labels, at 224 x 224.
# The one thing to set is data_root. In place of data_root and data_prefix,
# ann_file is a list of files, and dataset any data set of mmdet or mmseg.
data_root = 'data/pictures/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(type='mmext.RandomResizedCrop', _scope_='mmdet', scale=224),
    dict(type='mmdet.RandomFlip', _scope_='mmdet', prob=0.5),
    dict(type='mmext.PackImages', _scope_='mmdet'),
]

train_dataloader = dict(
    batch_size=64,
    num_workers=4,
    persistent_workers=True,
    # All steps have a whole batch, which the learning rate is for.
    drop_last=True,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=True),
    dataset=dict(
        type='mmext.UnlabelledImages',
        _scope_='mmdet',
        data_root=data_root,
        data_prefix=dict(img_path=''),
        pipeline=train_pipeline,
    ),
)
