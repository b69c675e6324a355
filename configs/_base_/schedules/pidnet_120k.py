# 120,000 iterations at 12 images per step, as mmseg trains PIDNet.
_base_ = './semantic_sgd_160k.py'

train_cfg = dict(max_iters=120000, val_interval=12000)
param_scheduler = [
    dict(
        type='PolyLR',
        _scope_='mmseg',
        eta_min=0.0,
        power=0.9,
        begin=0,
        end=120000,
        by_epoch=False,
    )
]
auto_scale_lr = dict(enable=False, base_batch_size=12)
randomness = dict(seed=304)
