_base_ = [
    '../_base_/models/pidnet_s_cityscapes.py',
    '../_base_/datasets/cityscapes_semantic.py',
    '../_base_/schedules/pidnet_120k.py',
    '../_base_/default_runtime_semantic.py',
]
