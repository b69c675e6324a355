_base_ = [
    '../_base_/models/co_dino_5scale_swin_l_lsj_lvis.py',
    '../_base_/datasets/lvis_v1_instance_lsj_1536.py',
    '../_base_/schedules/co_dino_16e.py',
    '../_base_/default_runtime.py',
]

# What it starts from, and why: co_dino_5scale_swin_l_16xb1_16e_o365tococo.py.
load_from = (
    'https://download.openmmlab.com/mmdetection/v3.0/codetr/'
    'co_dino_5scale_swin_large_22e_o365-0a33e247.pth'
)

model = dict(
    data_preprocessor=dict(
        batch_augments=[
            dict(
                type='mmdet.BatchFixedSizePad',
                size=(1536, 1536),
                pad_mask=False,
            )
        ]
    ),
    backbone=dict(with_cp=True),
    query_head=dict(
        dn_cfg=dict(box_noise_scale=0.4, group_cfg=dict(num_dn_queries=500))
    ),
    test_cfg=dict(
        query_head=dict(max_per_img=1000),
        roi_head=dict(max_per_img=1000),
        bbox_head=dict(max_per_img=1000),
    ),
)
