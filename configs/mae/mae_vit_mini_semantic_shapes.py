# Fine-tunes the encoder of mae_vit_mini_shapes.py. From random weights it
# starts with --cfg-options model.backbone.init_cfg=None.
_base_ = [
    '../_base_/models/mae_vit_mini_semantic.py',
    '../_base_/datasets/shapes_semantic.py',
    '../_base_/schedules/mae_finetune_2k.py',
    '../_base_/default_runtime_semantic.py',
]

default_hooks = dict(checkpoint=dict(interval=500))
