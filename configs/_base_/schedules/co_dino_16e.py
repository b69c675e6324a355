_base_ = './co_dino_1x.py'

# 16 epochs, learning rate divided by 10 after epoch 8. The list is written
# in full: it replaces the base's, and an entry without a type cannot be built.
train_cfg = dict(max_epochs=16)
param_scheduler = [
    dict(
        type='MultiStepLR',
        _scope_='mmdet',
        begin=0,
        end=16,
        by_epoch=True,
        milestones=[8],
        gamma=0.1,
    )
]

# Starts from a detector, not only from a backbone: half the rate.
optim_wrapper = dict(optimizer=dict(lr=1e-4))
