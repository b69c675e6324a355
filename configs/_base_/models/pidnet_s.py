# PIDNet-S with random weights and without class weights, for any data:
# num_classes and min_kept are to be set. The losses are, in this order, of
# the detailed branch, of the result, of the edges, and of the result where
# the network sees an edge.

model = dict(
    type='mmseg.EncoderDecoder',
    _scope_='mmseg',
    data_preprocessor=dict(
        type='mmseg.SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size_divisor=8,
        # Pictures of any size, which the backbone does not take.
        test_cfg=dict(size_divisor=8),
    ),
    backbone=dict(
        type='mmseg.PIDNet',
        in_channels=3,
        channels=32,
        ppm_channels=96,
        num_stem_blocks=2,
        num_branch_blocks=3,
        align_corners=False,
        norm_cfg=dict(type='BN', requires_grad=True),
        act_cfg=dict(type='ReLU', inplace=True),
    ),
    decode_head=dict(
        type='mmext.PIDHead',
        in_channels=128,
        channels=128,
        num_classes=19,
        norm_cfg=dict(type='BN', requires_grad=True),
        act_cfg=dict(type='ReLU', inplace=True),
        align_corners=True,
        loss_decode=[
            dict(type='mmext.CheckedCrossEntropyLoss', loss_weight=0.4),
            dict(type='mmext.CheckedOhemCrossEntropy', thres=0.9),
            dict(type='mmext.CheckedBoundaryLoss', loss_weight=20.0),
            dict(type='mmext.CheckedOhemCrossEntropy', thres=0.9),
        ],
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
