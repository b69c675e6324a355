# The recipe of MTAN and LibMTL for NYUv2: Adam, halved once, no warm-up.
optim_wrapper = dict(
    type='OptimWrapper',
    _scope_='mmseg',
    constructor='mmext.MergedOptimWrapperConstructor',
    optimizer=dict(type='Adam', lr=1e-4, weight_decay=1e-5),
)
param_scheduler = [
    dict(
        type='StepLR', _scope_='mmseg', step_size=100, gamma=0.5, by_epoch=True
    )
]
train_cfg = dict(by_epoch=True, max_epochs=200, val_interval=10)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(enable=False, base_batch_size=8)
