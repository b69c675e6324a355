_base_ = [
    '../_base_/models/co_dino_5scale_r50_instance.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/co_dino_1x.py',
    '../_base_/default_runtime.py',
]
