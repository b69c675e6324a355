# ResNet-50 with an output stride of 8, and a head of ASPP for each task of
# NYUv2: the model of the MTAN recipe. The balancer adds up the losses.
decode_head = dict(
    type='mmseg.ASPPHead',
    _scope_='mmseg',
    in_channels=2048,
    channels=256,
    in_index=-1,
    dilations=(1, 12, 24, 36),
    dropout_ratio=0,
    norm_cfg=dict(type='BN', requires_grad=True),
)

model = dict(
    type='mmext.MultiTaskModel',
    _scope_='mmseg',
    data_preprocessor=dict(
        type='mmext.MultiTaskDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
    ),
    backbone=dict(
        type='mmseg.ResNet',
        depth=50,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        dilations=(1, 1, 2, 4),
        strides=(1, 2, 1, 1),
        contract_dilation=True,
        norm_cfg=dict(type='BN', requires_grad=True),
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
    ),
    architecture=dict(type='mmext.HardSharing'),
    heads=dict(
        semantic=dict(
            type='mmext.SegmentationTaskHead',
            decode_head=decode_head,
            num_classes=13,
        ),
        depth=dict(type='mmext.DepthTaskHead', decode_head=decode_head),
        normal=dict(
            type='mmext.SurfaceNormalTaskHead', decode_head=decode_head
        ),
    ),
    balancer=dict(type='mmext.EqualWeights'),
)
