# Fine-tunes the encoder of mae_vit_mini_camvid.py on CamVid at 256 x 192. From
# random weights it starts with --cfg-options model.backbone.init_cfg=None.
_base_ = [
    '../_base_/models/mae_vit_mini_semantic.py',
    '../_base_/datasets/camvid_256x192_semantic.py',
    '../_base_/schedules/mae_finetune_2k.py',
    '../_base_/default_runtime_semantic.py',
]

model = dict(
    data_preprocessor=dict(seg_pad_val=11, size=(192, 256)),
    backbone=dict(
        img_size=(192, 256),
        init_cfg=dict(
            checkpoint='work_dirs/mae_vit_mini_camvid/epoch_100.pth'
        ),
    ),
    decode_head=dict(num_classes=11, ignore_index=11),
)

default_hooks = dict(checkpoint=dict(interval=500))
