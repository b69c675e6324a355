# As semantic_sgd_160k.py, but with AdamW as SegFormer is trained: ten times
# the rate for the head, no decay for positions and norms, and a warm-up.
_base_ = './semantic_sgd_160k.py'

param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmseg',
        start_factor=1e-6,
        by_epoch=False,
        begin=0,
        end=1500,
    ),
    dict(
        type='PolyLR',
        _scope_='mmseg',
        eta_min=0.0,
        power=1.0,
        begin=1500,
        end=160000,
        by_epoch=False,
    ),
]

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    _scope_='mmseg',
    constructor='mmext.MergedOptimWrapperConstructor',
    optimizer=dict(
        type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01
    ),
    paramwise_cfg=dict(
        custom_keys={
            'pos_block': dict(decay_mult=0.0),
            'norm': dict(decay_mult=0.0),
            'head': dict(lr_mult=10.0),
        }
    ),
)
