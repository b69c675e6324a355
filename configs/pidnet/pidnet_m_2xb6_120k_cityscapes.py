_base_ = './pidnet_s_2xb6_120k_cityscapes.py'

model = dict(
    backbone=dict(
        channels=64,
        init_cfg=dict(
            checkpoint='https://mmassets.onedl.ai/mmsegmentation/v0.5/'
            'pretrain/pidnet/pidnet-m_imagenet1k_20230306-39893c52.pth'
        ),
    ),
    decode_head=dict(in_channels=256),
)
