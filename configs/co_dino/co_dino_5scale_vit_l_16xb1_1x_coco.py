_base_ = [
    '../_base_/models/co_dino_5scale_vit_l.py',
    '../_base_/datasets/coco_detection_2400.py',
    '../_base_/schedules/co_dino_vit_1x.py',
    '../_base_/default_runtime.py',
]

# The published model starts from one of Objects365. From random weights a
# Vision Transformer of this size learns nothing useful of COCO alone: set
# `load_from`, or `init_cfg` of the backbone to weights of EVA-02.
