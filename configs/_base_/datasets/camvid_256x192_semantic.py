# CamVid as a whole picture of 256 x 192, for small models on CPUs.
_base_ = './camvid_semantic.py'

train_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(type='mmseg.Resize', _scope_='mmseg', scale=(256, 192)),
    dict(type='mmseg.RandomFlip', _scope_='mmseg', prob=0.5),
    dict(type='mmseg.PhotoMetricDistortion', _scope_='mmseg'),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', _scope_='mmseg'),
    dict(type='mmseg.Resize', _scope_='mmseg', scale=(256, 192)),
    # After Resize: the predictions are resized to the labels' size.
    dict(type='LoadAnnotations', _scope_='mmseg'),
    dict(type='mmseg.PackSegInputs', _scope_='mmseg'),
]
train_dataloader = dict(
    batch_size=8, num_workers=2, dataset=dict(pipeline=train_pipeline)
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
