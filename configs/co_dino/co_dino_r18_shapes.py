_base_ = [
    '../_base_/models/co_dino_r18_small.py',
    '../_base_/datasets/shapes_detection.py',
    '../_base_/schedules/co_dino_small.py',
    '../_base_/default_runtime.py',
]

# The generated shapes are 10 to 60 pixels wide, so the anchors start smaller
# than on photographs; and they are few, so everything that grows with the
# number of candidates is small.
model = dict(
    num_classes=6,
    query_head=dict(
        num_queries=30,
        max_co_queries=30,
        transformer=dict(encoder=dict(num_layers=1)),
    ),
    rpn_head=dict(anchor_generator=dict(octave_base_scale=2)),
    roi_head=dict(bbox_head=dict(fc_out_channels=128)),
    bbox_head=dict(anchor_generator=dict(octave_base_scale=3)),
    train_cfg=dict(
        rpn_head=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=100, max_per_img=50),
        roi_head=dict(sampler=dict(num=32)),
    ),
    test_cfg=dict(rpn_head=dict(nms_pre=100, max_per_img=50)),
)

# On pictures of this size a large rate works from the start.
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
