# Pictures of one's own, some thousands, on one GPU: ViT-S with a decoder of
# its width. The checkpoint's encoder goes into a backbone, see README.md.
_base_ = [
    '../_base_/models/mae_vit_base.py',
    '../_base_/datasets/pictures.py',
    '../_base_/schedules/mae_300e.py',
    '../_base_/default_runtime_mae.py',
]

model = dict(
    backbone=dict(arch='small'),
    neck=dict(
        embed_dim=384,
        decoder_embed_dim=256,
        decoder_depth=4,
        decoder_num_heads=8,
    ),
)
