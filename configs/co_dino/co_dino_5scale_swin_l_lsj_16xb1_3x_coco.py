_base_ = [
    '../_base_/models/co_dino_5scale_swin_l_lsj.py',
    '../_base_/datasets/coco_instance_lsj_1280.py',
    '../_base_/schedules/co_dino_3x.py',
    '../_base_/default_runtime.py',
]

# Three times the epochs need more stochastic depth, less of it than without
# the stronger augmentation.
model = dict(backbone=dict(drop_path_rate=0.5))
