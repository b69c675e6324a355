# For few labels, here those of 205 pictures: the backbone was pre-trained
# without any, and stays as it is. Needs pip install 'mmext[transformers]'.
_base_ = [
    '../_base_/models/co_dino_dinov2_vit_s14.py',
    '../_base_/datasets/bccd_detection.py',
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
optim_wrapper = dict(optimizer=dict(lr=1e-3))
