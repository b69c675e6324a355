_base_ = './pidnet_s_2xb6_120k_cityscapes.py'

model = dict(
    backbone=dict(
        channels=64,
        ppm_channels=112,
        num_stem_blocks=3,
        num_branch_blocks=4,
        init_cfg=dict(
            checkpoint='https://mmassets.onedl.ai/mmsegmentation/v0.5/'
            'pretrain/pidnet/pidnet-l_imagenet1k_20230306-67889109.pth'
        ),
    ),
    decode_head=dict(in_channels=256, channels=256),
)
