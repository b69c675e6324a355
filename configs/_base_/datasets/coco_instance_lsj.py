# COCO with large-scale jitter and copy-paste on a 1024 x 1024 canvas, as in
# the public CO-DINO LSJ configs. Masks are read for the pasting; boxes are
# evaluated. The one thing to set is data_root. The model needs
# mask_policy='canvas'.
data_root = 'data/coco/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root

image_size = (1024, 1024)  # also the size of BatchFixedSizePad

load_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.LoadAnnotations',
        _scope_='mmdet',
        with_bbox=True,
        with_mask=True,
    ),
    dict(
        type='RandomResize',
        _scope_='mmdet',
        resize_type='mmdet.Resize',
        scale=image_size,
        ratio_range=(0.1, 2.0),
        keep_ratio=True,
    ),
    dict(
        type='mmdet.RandomCrop',
        _scope_='mmdet',
        crop_type='absolute_range',
        crop_size=image_size,
        recompute_bbox=True,
        allow_negative_crop=True,
    ),
    dict(
        type='mmdet.FilterAnnotations',
        _scope_='mmdet',
        min_gt_bbox_wh=(1e-2, 1e-2),
    ),
    dict(type='mmdet.RandomFlip', _scope_='mmdet', prob=0.5),
    dict(
        type='mmdet.Pad',
        _scope_='mmdet',
        size=image_size,
        pad_val=dict(img=(114, 114, 114)),
    ),
]
train_pipeline = [
    dict(type='mmdet.CopyPaste', _scope_='mmdet', max_num_pasted=100),
    dict(type='mmdet.PackDetInputs', _scope_='mmdet'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmdet'),
    dict(
        type='mmdet.Resize', _scope_='mmdet', scale=image_size, keep_ratio=True
    ),
    dict(
        type='mmdet.Pad',
        _scope_='mmdet',
        size=image_size,
        pad_val=dict(img=(114, 114, 114)),
    ),
    # After the resize, since boxes are compared in the original picture.
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

train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=True),
    dataset=dict(
        type='mmdet.MultiImageMixDataset',
        _scope_='mmdet',
        dataset=dict(
            type='mmdet.CocoDataset',
            data_root=data_root,
            ann_file='annotations/instances_train2017.json',
            data_prefix=dict(img='train2017/'),
            filter_cfg=dict(filter_empty_gt=False, min_size=32),
            pipeline=load_pipeline,
        ),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', _scope_='mmdet', shuffle=False),
    dataset=dict(
        type='mmdet.CocoDataset',
        _scope_='mmdet',
        data_root=data_root,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

# The file, and not the loaded boxes, since COCO's areas are those of masks.
val_evaluator = dict(
    type='mmext.CocoMetric',
    _scope_='mmdet',
    ann_file=data_root + 'annotations/instances_val2017.json',
    metric='bbox',
)
test_evaluator = val_evaluator
