# CamVid: streets at 480 x 360, 11 classes, in the layout of SegNet's
# tutorial: train/, trainannot/, val/, valannot/. The value 11 of the label
# files is "void". Each place below that ignores it has to be told: mmseg
# ignores 255 by default. The model's places are in configs/pidnet.
data_root = 'data/camvid/'
base_data_root = data_root  # see mmext.checks.config.apply_data_root
ignore_index = 11

metainfo = dict(
    classes=(
        'Sky',
        'Building',
        'Pole',
        'Road',
        'Pavement',
        'Tree',
        'SignSymbol',
        'Fence',
        'Car',
        'Pedestrian',
        'Bicyclist',
    ),
    palette=[
        (128, 128, 128),
        (128, 0, 0),
        (192, 192, 128),
        (128, 64, 128),
        (60, 40, 222),
        (128, 128, 0),
        (192, 128, 128),
        (64, 64, 128),
        (64, 0, 128),
        (64, 64, 0),
        (0, 128, 192),
    ],
)

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(
        type='RandomResize',
        _scope_='mmseg',
        resize_type='mmseg.Resize',
        scale=(480, 360),
        ratio_range=(0.75, 2.0),
        keep_ratio=True,
    ),
    dict(
        type='mmseg.RandomCrop',
        _scope_='mmseg',
        crop_size=(320, 320),
        cat_max_ratio=0.75,
        ignore_index=ignore_index,
    ),
    dict(type='mmseg.RandomFlip', _scope_='mmseg', prob=0.5),
    dict(type='mmseg.PhotoMetricDistortion', _scope_='mmseg'),
    # PIDNet learns the edges, too. Other models do not look at them.
    dict(
        type='mmseg.GenerateEdge',
        _scope_='mmseg',
        edge_width=4,
        ignore_index=ignore_index,
    ),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]

train_dataloader = dict(
    batch_size=12,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', _scope_='mmseg', shuffle=True),
    dataset=dict(
        type='mmseg.BaseSegDataset',
        _scope_='mmseg',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='train', seg_map_path='trainannot'),
        ignore_index=ignore_index,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', _scope_='mmseg', shuffle=False),
    dataset=dict(
        type='mmseg.BaseSegDataset',
        _scope_='mmseg',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='val', seg_map_path='valannot'),
        ignore_index=ignore_index,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(
    type='mmseg.IoUMetric',
    _scope_='mmseg',
    iou_metrics=['mIoU'],
    ignore_index=ignore_index,
)
test_evaluator = val_evaluator
