_base_ = [
    '../_base_/models/co_dino_5scale_swin_l.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/co_dino_3x.py',
    '../_base_/default_runtime.py',
]

train_dataloader = dict(batch_size=1)

# Three times the epochs need more stochastic depth.
model = dict(backbone=dict(drop_path_rate=0.6))
