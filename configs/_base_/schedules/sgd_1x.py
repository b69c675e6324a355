# 12 epochs, learning rate divided by 10 after epochs 8 and 11, 500 steps of
# warm-up.
train_cfg = dict(
    type='EpochBasedTrainLoop', _scope_='mmdet', max_epochs=12, val_interval=1
)
val_cfg = dict(type='ValLoop', _scope_='mmdet')
test_cfg = dict(type='TestLoop', _scope_='mmdet')

param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmdet',
        start_factor=0.001,
        begin=0,
        end=500,
        by_epoch=False,
    ),
    dict(
        type='MultiStepLR',
        _scope_='mmdet',
        begin=0,
        end=12,
        by_epoch=True,
        milestones=[8, 11],
        gamma=0.1,
    ),
]

optim_wrapper = dict(
    type='OptimWrapper',
    _scope_='mmdet',
    constructor='mmext.MergedOptimWrapperConstructor',
    optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=1e-4),
)

# The learning rate is for 16 images per step; started with `--auto-scale-lr`
# it is scaled linearly to the actual number, as suits SGD.
auto_scale_lr = dict(enable=False, base_batch_size=16)
