# 160,000 iterations of SGD, the rate coming down along a polynomial, for 16
# images per step: the schedule of mmseg's models for ADE20K.
train_cfg = dict(
    type='IterBasedTrainLoop',
    _scope_='mmseg',
    max_iters=160000,
    val_interval=16000,
)
val_cfg = dict(type='ValLoop', _scope_='mmseg')
test_cfg = dict(type='TestLoop', _scope_='mmseg')

param_scheduler = [
    dict(
        type='PolyLR',
        _scope_='mmseg',
        eta_min=1e-4,
        power=0.9,
        begin=0,
        end=160000,
        by_epoch=False,
    )
]

optim_wrapper = dict(
    type='OptimWrapper',
    _scope_='mmseg',
    constructor='mmext.MergedOptimWrapperConstructor',
    optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0005),
)

# --auto-scale-lr scales the rate by images per step over this number.
auto_scale_lr = dict(enable=False, base_batch_size=16)
