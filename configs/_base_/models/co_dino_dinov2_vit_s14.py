_base_ = './co_dino_r18_small.py'

# The small detector on a frozen ViT-S/14 of DINOv2: one map of stride 14, of
# which the neck makes four. Mean and std of the pictures, in RGB, are those of
# ImageNet, as in DINOv2's own training.
model = dict(
    # The maps are whole; masks leave the padding out.
    data_preprocessor=dict(pad_size_divisor=56),
    backbone=dict(
        _delete_=True,
        type='mmext.HFBackbone',
        # What the name below has; written out, so that a detector is built
        # without a look at the hub.
        config=dict(
            model_type='dinov2',
            patch_size=14,
            image_size=518,
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=6,
        ),
        # All layers, and what is before and behind them.
        frozen_stages=12,
        # A name on the hub, or a folder.
        init_cfg=dict(type='Pretrained', checkpoint='facebook/dinov2-small'),
    ),
    neck=dict(
        _delete_=True,
        type='mmext.SimpleFeaturePyramid',
        in_channels=[384],
        out_channels=128,
        num_outs=4,
    ),
    rpn_head=dict(anchor_generator=dict(strides=[7, 14, 28, 56, 112])),
    roi_head=dict(bbox_roi_extractor=dict(featmap_strides=[7, 14, 28, 56])),
    bbox_head=dict(anchor_generator=dict(strides=[7, 14, 28, 56, 112])),
)
