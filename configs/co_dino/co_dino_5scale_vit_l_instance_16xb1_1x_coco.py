_base_ = [
    '../_base_/models/co_dino_5scale_vit_l_instance.py',
    '../_base_/datasets/coco_instance_2400.py',
    '../_base_/schedules/co_dino_vit_1x.py',
    '../_base_/default_runtime.py',
]

# What to start from: see co_dino_5scale_vit_l_16xb1_1x_coco.py.
