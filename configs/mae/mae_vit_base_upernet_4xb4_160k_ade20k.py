_base_ = '../upernet/upernet_r50_4xb4_160k_ade20k.py'

# The encoder of mae_vit_base_8xb512_300e_imagenet.py; positions are
# interpolated to 512 x 512.
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmext.MAEViT',
        arch='base',
        img_size=512,
        patch_size=16,
        out_type='featmap',
        out_indices=(3, 5, 7, 11),
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/mae_vit_base_8xb512_300e_imagenet/'
            'epoch_300.pth',
            prefix='backbone.',
        ),
    ),
    neck=dict(type='mmseg.Feature2Pyramid', embed_dim=768),
    decode_head=dict(in_channels=[768, 768, 768, 768]),
    auxiliary_head=dict(in_channels=768),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    _scope_='mmseg',
    constructor='LearningRateDecayOptimizerConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(
        num_layers=12, decay_rate=0.65, decay_type='layer_wise'
    ),
)
