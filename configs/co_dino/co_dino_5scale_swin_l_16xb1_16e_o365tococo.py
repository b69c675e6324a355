_base_ = [
    '../_base_/models/co_dino_5scale_swin_l.py',
    '../_base_/datasets/coco_detection_2048.py',
    '../_base_/schedules/co_dino_16e.py',
    '../_base_/default_runtime.py',
]

# 22 epochs of Objects365. Its 365 classes are not COCO's 80: the tensors that
# depend on the number of classes start anew, which the loader lists.
load_from = (
    'https://download.openmmlab.com/mmdetection/v3.0/codetr/'
    'co_dino_5scale_swin_large_22e_o365-0a33e247.pth'
)

model = dict(
    # Up to 1536 x 2048 pixels: 3 times the tokens of the other configs.
    # Not reentrant, so that it needs no other setting for several GPUs.
    backbone=dict(with_cp=True),
    # Boxes that start near the truth are denoised from nearer, in more groups.
    query_head=dict(
        dn_cfg=dict(box_noise_scale=0.4, group_cfg=dict(num_dn_queries=500))
    ),
)
