_base_ = './co_dino_1x.py'

# 12 epochs after a warm-up, learning rate divided by 10 after epoch 7. The
# list is written in full: it replaces the base's.
param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmdet',
        begin=0,
        end=500,
        by_epoch=False,
        start_factor=0.01,
    ),
    dict(
        type='MultiStepLR',
        _scope_='mmdet',
        begin=0,
        end=12,
        by_epoch=True,
        milestones=[7],
        gamma=0.1,
    ),
]

# Each block of the backbone learns at 0.8 of the rate of the next one.
optim_wrapper = dict(
    optimizer=dict(lr=5e-5, weight_decay=0.01),
    paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.8),
)

custom_hooks = [
    dict(
        type='EMAHook',
        _scope_='mmdet',
        ema_type='ExpMomentumEMA',
        momentum=0.0001,
        update_buffers=True,
        priority=49,
    )
]
