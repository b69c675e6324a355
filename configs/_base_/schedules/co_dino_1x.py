# 12 epochs, learning rate divided by 10 after epoch 11, no warm-up.
train_cfg = dict(
    type='EpochBasedTrainLoop', _scope_='mmdet', max_epochs=12, val_interval=1
)
val_cfg = dict(type='ValLoop', _scope_='mmdet')
test_cfg = dict(type='TestLoop', _scope_='mmdet')

param_scheduler = [
    dict(
        type='MultiStepLR',
        _scope_='mmdet',
        begin=0,
        end=12,
        by_epoch=True,
        milestones=[11],
        gamma=0.1,
    )
]

# The backbone comes with pretrained weights and moves at a tenth of the rate.
optim_wrapper = dict(
    type='OptimWrapper',
    _scope_='mmdet',
    constructor='mmext.MergedOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=2e-4, weight_decay=1e-4),
    clip_grad=dict(max_norm=0.1, norm_type=2),
    paramwise_cfg=dict(custom_keys={'backbone': dict(lr_mult=0.1)}),
)

# The learning rate is for 16 images per step (8 x 2 or 16 x 1); started with
# `--auto-scale-lr` it is scaled by the square root, as suits Adam.
auto_scale_lr = dict(enable=False, base_batch_size=16)
