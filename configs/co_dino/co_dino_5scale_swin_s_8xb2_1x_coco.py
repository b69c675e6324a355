_base_ = [
    '../_base_/models/co_dino_5scale_swin_s.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/co_dino_1x.py',
    '../_base_/default_runtime.py',
]
