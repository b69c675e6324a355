_base_ = './co_dino_1x.py'

# 20 epochs for the small models, which start from nothing: the backbone has
# the full rate, the rate warms up, and it comes down along a cosine, which has
# no milestone to tune.
train_cfg = dict(max_epochs=20, val_interval=5)
param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmdet',
        start_factor=0.01,
        by_epoch=False,
        begin=0,
        end=50,
    ),
    dict(
        type='CosineAnnealingLR',
        _scope_='mmdet',
        begin=0,
        end=20,
        T_max=20,
        eta_min_ratio=0.01,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]

optim_wrapper = dict(optimizer=dict(lr=5e-4), paramwise_cfg=None)
