_base_ = [
    '../_base_/models/co_dino_5scale_swin_l_lsj_lvis.py',
    '../_base_/datasets/lvis_v1_instance_lsj_1280.py',
    '../_base_/schedules/co_dino_3x.py',
    '../_base_/default_runtime.py',
]

# The public config is one to test with: this is from the one of COCO.
model = dict(backbone=dict(drop_path_rate=0.5))
