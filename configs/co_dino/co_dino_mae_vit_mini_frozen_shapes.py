# For few labels: those of a tenth of the pictures, and a backbone that
# mae_vit_mini_shapes.py pre-trained without any, which stays as it is. From
# random weights it starts with --cfg-options model.backbone.init_cfg=None.
_base_ = [
    '../_base_/models/co_dino_mae_vit_mini.py',
    '../_base_/datasets/shapes_detection.py',
    '../_base_/schedules/co_dino_small.py',
    '../_base_/default_runtime.py',
]

# The anchors of co_dino_r18_shapes.py, at half the strides.
model = dict(
    num_classes=6,
    rpn_head=dict(anchor_generator=dict(octave_base_scale=4)),
    roi_head=dict(bbox_head=dict(fc_out_channels=128)),
    bbox_head=dict(anchor_generator=dict(octave_base_scale=6)),
)

train_dataloader = dict(dataset=dict(indices=200))
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
