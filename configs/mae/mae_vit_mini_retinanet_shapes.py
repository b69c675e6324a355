# The encoder of mae_vit_mini_shapes.py in a detector. From random weights it
# starts with --cfg-options model.backbone.init_cfg=None.
_base_ = [
    '../_base_/models/mae_vit_mini_retinanet.py',
    '../_base_/datasets/shapes_detection.py',
    '../_base_/schedules/co_dino_small.py',
    '../_base_/default_runtime.py',
]
