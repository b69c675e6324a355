# Pictures of one's own at 128 x 128, some hundreds to thousands: ViT-Ti in
# minutes on a GPU, and in hours on a CPU.
_base_ = [
    '../_base_/models/mae_vit_base.py',
    '../_base_/datasets/pictures.py',
    '../_base_/schedules/mae_100e.py',
    '../_base_/default_runtime_mae.py',
]

model = dict(
    backbone=dict(arch='tiny', img_size=128),
    neck=dict(
        img_size=128,
        embed_dim=192,
        decoder_embed_dim=128,
        decoder_depth=2,
        decoder_num_heads=4,
    ),
)
train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(type='mmext.RandomResizedCrop', _scope_='mmdet', scale=128),
    dict(type='mmdet.RandomFlip', _scope_='mmdet', prob=0.5),
    dict(type='mmext.PackImages', _scope_='mmdet'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
