# Pre-training on the street scenes of CamVid without their labels: parts of
# 3 % to 20 % of a picture, at about half the resolution.
_base_ = './mae_vit_mini_shapes.py'

# The one thing to set is data_root.
data_root = 'data/camvid/'

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmext.RandomResizedCrop',
        _scope_='mmdet',
        scale=64,
        area=(0.03, 0.2),
    ),
    dict(type='mmdet.RandomFlip', _scope_='mmdet', prob=0.5),
    dict(type='mmext.PackImages', _scope_='mmdet'),
]
train_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        data_prefix=dict(img_path='train'),
        pipeline=train_pipeline,
    )
)
