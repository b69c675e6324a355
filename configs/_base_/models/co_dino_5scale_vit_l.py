_base_ = './co_dino_5scale_r50.py'

model = dict(
    # Maps of stride 32 and 64 are whole; masks leave the padding out.
    data_preprocessor=dict(pad_size_divisor=32),
    backbone=dict(
        _delete_=True,
        type='mmext.EVA02ViT',
        arch='large',
        window_size=24,
        # Every fourth block looks at the whole map.
        global_indices=[3, 7, 11, 15, 19, 23],
        pretrain_img_size=512,
        drop_path_rate=0.4,
        # All blocks. Never reentrant, so that several GPUs need no setting.
        with_cp=True,
    ),
    neck=dict(
        _delete_=True,
        type='mmext.SimpleFeaturePyramid',
        in_channels=[1024],
        out_channels=256,
        num_outs=5,
    ),
    query_head=dict(
        num_queries=1500,
        # Boxes that start near the truth are denoised from nearer, in more
        # groups.
        dn_cfg=dict(box_noise_scale=0.4, group_cfg=dict(num_dn_queries=300)),
        transformer=dict(encoder=dict(with_cp=True)),
    ),
    roi_head=dict(
        bbox_head=dict(
            type='mmdet.ConvFCBBoxHead',
            num_shared_convs=4,
            num_shared_fcs=1,
            conv_out_channels=256,
            norm_cfg=dict(type='GN', num_groups=32),
            bbox_coder=dict(target_stds=[0.05, 0.05, 0.1, 0.1]),
            reg_class_agnostic=True,
        )
    ),
    test_cfg=dict(
        query_head=dict(max_per_img=1000),
        rpn_head=dict(
            nms_pre=8000,
            max_per_img=2000,
            nms=dict(type='nms', iou_threshold=0.9),
        ),
        roi_head=dict(
            nms=dict(type='soft_nms', iou_threshold=0.5), max_per_img=1000
        ),
        bbox_head=dict(nms=dict(type='soft_nms', iou_threshold=0.6)),
    ),
)
