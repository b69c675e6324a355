_base_ = [
    '../_base_/models/semantic_r50_d8.py',
    '../_base_/datasets/ade20k_semantic.py',
    '../_base_/schedules/semantic_sgd_160k.py',
    '../_base_/default_runtime_semantic.py',
]

model = dict(decode_head=dict(type='mmext.PSPHead', pool_scales=(1, 2, 3, 6)))
