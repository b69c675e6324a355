_base_ = './co_deformable_detr_swin_l_8xb2_1x_coco.py'

model = dict(
    backbone=dict(drop_path_rate=0.6),
    query_head=dict(num_queries=900),
    test_cfg=dict(query_head=dict(max_per_img=300)),
)

# As schedules/co_dino_3x.py.
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
