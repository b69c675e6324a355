# A dilated ResNet-50 with an auxiliary head, as mmseg's models for ADE20K
# have it. The config that inherits names the head: decode_head.type.
#
# The losses are those of mmseg in value: without class weights the mean is
# over all pixels, ignored ones included. denominator='valid' leaves them out.

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
        size=(512, 512),
    ),
    backbone=dict(
        type='mmseg.ResNetV1c',
        depth=50,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        dilations=(1, 1, 2, 4),
        strides=(1, 2, 1, 1),
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        norm_eval=False,
        style='pytorch',
        contract_dilation=True,
        init_cfg=dict(
            type='Pretrained', checkpoint='open-mmlab://resnet50_v1c'
        ),
    ),
    decode_head=dict(
        in_channels=2048,
        in_index=3,
        channels=512,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='mmext.CheckedCrossEntropyLoss'),
    ),
    auxiliary_head=dict(
        type='mmext.FCNHead',
        in_channels=1024,
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(
            type='mmext.CheckedCrossEntropyLoss', loss_weight=0.4
        ),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
