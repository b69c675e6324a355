_base_ = './co_dino_1x.py'

# 36 epochs, learning rate divided by 10 after epoch 30. The list is written
# in full: it replaces the base's, and an entry without a type cannot be built.
train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(
        type='MultiStepLR',
        _scope_='mmdet',
        begin=0,
        end=36,
        by_epoch=True,
        milestones=[30],
        gamma=0.1,
    )
]
