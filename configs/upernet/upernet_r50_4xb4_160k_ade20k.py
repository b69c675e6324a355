_base_ = [
    '../_base_/models/semantic_r50_d8.py',
    '../_base_/datasets/ade20k_semantic.py',
    '../_base_/schedules/semantic_sgd_160k.py',
    '../_base_/default_runtime_semantic.py',
]

# The backbone is not dilated here: its stages have four resolutions.
model = dict(
    backbone=dict(dilations=(1, 1, 1, 1), strides=(1, 2, 2, 2)),
    decode_head=dict(
        type='mmext.UPerHead',
        in_channels=[256, 512, 1024, 2048],
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
    ),
)
