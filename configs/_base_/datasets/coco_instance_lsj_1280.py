# COCO with large-scale jitter and copy-paste on the 1280 x 1280 canvas of the
# public Swin-L LSJ configs, one picture per GPU.
_base_ = './coco_instance_lsj.py'

image_size = (1280, 1280)  # also the size of BatchFixedSizePad

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
    batch_size=1,
    num_workers=2,
    dataset=dict(dataset=dict(pipeline=load_pipeline)),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
