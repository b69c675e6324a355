# Parts of Pixio's recipe: blocks of 4 x 4 patches are masked as a whole, a
# deep decoder, and eight class tokens, at 256 x 256.
_base_ = './mae_vit_small_300e_pictures.py'

model = dict(
    backbone=dict(img_size=256, num_cls_tokens=8),
    neck=dict(
        img_size=256,
        num_cls_tokens=8,
        decoder_depth=16,
    ),
    mask_block=4,
)
train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(type='mmext.RandomResizedCrop', _scope_='mmdet', scale=256),
    dict(type='mmdet.RandomFlip', _scope_='mmdet', prob=0.5),
    dict(type='mmext.PackImages', _scope_='mmdet'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
