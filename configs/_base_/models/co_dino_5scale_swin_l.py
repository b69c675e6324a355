_base_ = './co_dino_5scale_r50.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmdet.SwinTransformer',
        pretrain_img_size=384,
        embed_dims=192,
        depths=[2, 2, 18, 2],
        num_heads=[6, 12, 24, 48],
        window_size=12,
        mlp_ratio=4,
        qkv_bias=True,
        qk_scale=None,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        # 0.3 for 12 epochs; the 36-epoch configs raise it.
        drop_path_rate=0.3,
        patch_norm=True,
        # Every stage is used, so no output norm is left without a gradient.
        out_indices=(0, 1, 2, 3),
        # On for larger images, see co_dino_5scale_swin_l_16xb1_16e_o365tococo.
        with_cp=False,
        # The file has Microsoft's names and patch-merging order.
        convert_weights=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/SwinTransformer/storage/releases/'
            'download/v1.0.0/swin_large_patch4_window12_384_22k.pth',
        ),
    ),
    neck=dict(in_channels=[192, 384, 768, 1536]),
    # All six layers, not four, as the backbone itself needs more.
    query_head=dict(transformer=dict(encoder=dict(with_cp=True))),
)
