_base_ = './co_dino_5scale_r50_lsj_lvis.py'

# As co_dino_5scale_vit_l.py, with smaller windows, and with the queries and
# the R-CNN head of the ResNet.
model = dict(
    data_preprocessor=dict(
        batch_augments=[
            dict(
                type='mmdet.BatchFixedSizePad',
                size=(1536, 1536),
                pad_mask=False,
            )
        ]
    ),
    backbone=dict(
        _delete_=True,
        type='mmext.EVA02ViT',
        arch='large',
        window_size=16,
        # Every third block looks at the whole map.
        global_indices=[2, 5, 8, 11, 14, 17, 20, 23],
        pretrain_img_size=512,
        drop_path_rate=0.3,
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
        dn_cfg=dict(box_noise_scale=0.4, group_cfg=dict(num_dn_queries=300)),
        transformer=dict(encoder=dict(with_cp=True)),
    ),
    test_cfg=dict(query_head=dict(max_per_img=1000)),
)
