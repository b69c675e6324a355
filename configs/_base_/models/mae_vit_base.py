# MAE of a ViT-B/16 at 224 x 224, with the decoder of the paper.
model = dict(
    type='mmext.MAE',
    _scope_='mmdet',
    data_preprocessor=dict(
        type='ImgDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
    ),
    backbone=dict(
        type='mmext.MAEViT', arch='base', img_size=224, patch_size=16
    ),
    neck=dict(
        type='mmext.MAEDecoder',
        img_size=224,
        patch_size=16,
        embed_dim=768,
        decoder_embed_dim=512,
        decoder_depth=8,
        decoder_num_heads=16,
    ),
    head=dict(type='mmext.MAEHead', patch_size=16, norm_pix=True),
    mask_ratio=0.75,
)
