# The same in 100 epochs, 5 of them warming up, for small data; in float32,
# which small models on CPUs are fastest in.
_base_ = './mae_300e.py'

train_cfg = dict(max_epochs=100)
param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmdet',
        start_factor=1e-4,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        _scope_='mmdet',
        T_max=95,
        by_epoch=True,
        begin=5,
        end=100,
        convert_to_iter_based=True,
    ),
]

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    _scope_='mmdet',
    constructor='mmext.MergedOptimWrapperConstructor',
    optimizer=dict(
        type='AdamW', lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05
    ),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            'cls_token': dict(decay_mult=0.0),
            'mask_token': dict(decay_mult=0.0),
        },
    ),
)
