# MAE of a small ViT with patches of 8 x 8 at 64 x 64, for CPUs: 0.7 million
# parameters in the encoder, which 16 of 64 patches go through.
_base_ = './mae_vit_base.py'

model = dict(
    backbone=dict(
        arch='mini',
        img_size=64,
        patch_size=8,
    ),
    neck=dict(
        img_size=64,
        patch_size=8,
        embed_dim=96,
        decoder_embed_dim=96,
        decoder_depth=2,
        decoder_num_heads=3,
    ),
    head=dict(patch_size=8),
)
