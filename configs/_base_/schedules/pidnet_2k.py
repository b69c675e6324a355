# 2,000 iterations of the same, for CPUs.
_base_ = './pidnet_6k.py'

train_cfg = dict(max_iters=2000, val_interval=500)
param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmseg',
        start_factor=0.01,
        by_epoch=False,
        begin=0,
        end=100,
    ),
    dict(
        type='PolyLR',
        _scope_='mmseg',
        eta_min=0.0,
        power=0.9,
        begin=100,
        end=2000,
        by_epoch=False,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=8)
