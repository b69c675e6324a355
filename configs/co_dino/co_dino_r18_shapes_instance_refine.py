_base_ = [
    '../_base_/models/co_dino_r18_small_instance_refine.py',
    '../_base_/datasets/shapes_instance.py',
    '../_base_/schedules/co_dino_small.py',
    '../_base_/default_runtime.py',
]

# As co_dino_r18_shapes_instance.py, for shapes that are 10 to 60 pixels wide.
model = dict(
    num_classes=6,
    rpn_head=dict(anchor_generator=dict(octave_base_scale=2)),
    roi_head=dict(bbox_head=dict(fc_out_channels=128)),
    bbox_head=dict(anchor_generator=dict(octave_base_scale=3)),
)

# On pictures of this size a large rate works from the start.
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
