# 2,000 iterations that fine-tune an encoder of six layers.
_base_ = './pidnet_2k.py'

# Earlier layers, which change least, get less.
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    _scope_='mmseg',
    constructor='LearningRateDecayOptimizerConstructor',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    paramwise_cfg=dict(num_layers=6, decay_rate=0.75, decay_type='layer_wise'),
)
