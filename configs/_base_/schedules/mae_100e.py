# The same in 100 epochs, 5 of them warming up, for small data; in float32,
# which small models on CPUs are fastest in.
_base_ = './mae_300e.py'

train_cfg = dict(max_epochs=100)
param_scheduler = [
    dict(
        type='LinearLR',
        _scope_='mmdet',
        start_factor=1e-4,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        _scope_='mmdet',
        T_max=95,
        by_epoch=True,
        begin=5,
        end=100,
        convert_to_iter_based=True,
    ),
]
