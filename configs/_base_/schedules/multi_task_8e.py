# Minutes on a CPU.
_base_ = './multi_task_200e.py'

optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        _scope_='mmseg',
        T_max=8,
        eta_min=1e-5,
        by_epoch=True,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=8, val_interval=4)
