_base_ = [
    '../_base_/models/co_dino_5scale_vit_l_lsj_lvis.py',
    '../_base_/datasets/lvis_v1_instance_lsj_1536.py',
    '../_base_/schedules/co_dino_vit_1x.py',
    '../_base_/default_runtime.py',
]

# What to start from: see co_dino_5scale_vit_l_16xb1_1x_coco.py.

train_cfg = dict(max_epochs=16)
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
        end=16,
        by_epoch=True,
        milestones=[9, 15],
        gamma=0.1,
    ),
]
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
