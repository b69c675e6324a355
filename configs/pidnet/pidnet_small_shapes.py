_base_ = [
    '../_base_/models/pidnet_s.py',
    '../_base_/datasets/shapes_semantic.py',
    '../_base_/schedules/pidnet_2k.py',
    '../_base_/default_runtime_semantic.py',
]

# Half the width of PIDNet-S, and seven classes: the ground and six shapes.
# 2 % of the 8 x 128 x 128 pixels of a batch are kept at least.
model = dict(
    backbone=dict(channels=16, ppm_channels=48),
    decode_head=dict(
        in_channels=64,
        channels=64,
        num_classes=7,
        loss_decode=[
            dict(type='mmext.CheckedCrossEntropyLoss', loss_weight=0.4),
            dict(
                type='mmext.CheckedOhemCrossEntropy', thres=0.9, min_kept=2600
            ),
            dict(type='mmext.CheckedBoundaryLoss', loss_weight=20.0),
            dict(
                type='mmext.CheckedOhemCrossEntropy', thres=0.9, min_kept=2600
            ),
        ],
    ),
)
default_hooks = dict(checkpoint=dict(interval=500))
