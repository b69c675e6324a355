# Fine-tunes the encoder of mae_vit_mini_shapes.py. From random weights it
# starts with --cfg-options model.backbone.init_cfg=None.
_base_ = [
    '../_base_/models/mae_vit_mini_semantic.py',
    '../_base_/datasets/shapes_semantic.py',
    '../_base_/schedules/pidnet_2k.py',
    '../_base_/default_runtime_semantic.py',
]

# Earlier layers, which change least, get less.
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    _scope_='mmseg',
    constructor='LearningRateDecayOptimizerConstructor',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    paramwise_cfg=dict(num_layers=6, decay_rate=0.75, decay_type='layer_wise'),
)
default_hooks = dict(checkpoint=dict(interval=500))
