# The weights are given to those who accept their licence on the hub: log in
# there (hf auth login), or name a folder.
_base_ = './co_dino_dinov2_vit_s14_frozen_bccd.py'

model = dict(
    data_preprocessor=dict(pad_size_divisor=64),
    backbone=dict(
        config=dict(
            _delete_=True,
            model_type='dinov3_vit',
            patch_size=16,
            hidden_size=384,
            intermediate_size=1536,
            num_hidden_layers=12,
            num_attention_heads=6,
            num_register_tokens=4,
        ),
        init_cfg=dict(checkpoint='facebook/dinov3-vits16-pretrain-lvd1689m'),
    ),
    rpn_head=dict(anchor_generator=dict(strides=[8, 16, 32, 64, 128])),
    roi_head=dict(bbox_roi_extractor=dict(featmap_strides=[8, 16, 32, 64])),
    bbox_head=dict(anchor_generator=dict(strides=[8, 16, 32, 64, 128])),
)
