# 6,000 iterations from random weights, with a warm-up.
_base_ = './semantic_sgd_160k.py'

train_cfg = dict(max_iters=6000, val_interval=600)
param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmseg',
        start_factor=0.01,
        by_epoch=False,
        begin=0,
        end=200,
    ),
    dict(
        type='PolyLR',
        _scope_='mmseg',
        eta_min=0.0,
        power=0.9,
        begin=200,
        end=6000,
        by_epoch=False,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=12)
