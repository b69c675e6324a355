_base_ = [
    '../_base_/models/co_dino_r18_small.py',
    '../_base_/datasets/bccd_detection_320.py',
    '../_base_/schedules/co_dino_small.py',
    '../_base_/default_runtime.py',
]

# A picture holds up to 30 cells, on average 13.
model = dict(
    num_classes=3,
    query_head=dict(
        num_queries=80,
        max_co_queries=80,
        dn_cfg=dict(group_cfg=dict(num_dn_queries=60)),
    ),
)
train_dataloader = dict(batch_size=4)

# 14 epochs of it, in two processes, gave mAP 0.48 from random weights.
optim_wrapper = dict(optimizer=dict(lr=1e-3))
