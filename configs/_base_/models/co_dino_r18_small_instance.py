_base_ = './co_dino_r18_small.py'

# A thin mask branch on the Faster R-CNN head, evaluated on the boxes of the
# query head.
model = dict(
    data_preprocessor=dict(pad_mask=True, mask_pad_value=0),
    # False detects boxes only.
    eval_masks=True,
    roi_head=dict(
        mask_roi_extractor=dict(
            type='mmdet.SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=14, sampling_ratio=0),
            out_channels=128,
            featmap_strides=[8, 16, 32, 64],
            finest_scale=56,
        ),
        mask_head=dict(
            type='mmdet.FCNMaskHead',
            num_convs=2,
            in_channels=128,
            conv_out_channels=64,
            # The usual weight times 4, as of the other co-heads.
            loss_mask=dict(
                type='mmdet.CrossEntropyLoss', use_mask=True, loss_weight=4.0
            ),
        ),
    ),
    train_cfg=dict(roi_head=dict(mask_size=28)),
    test_cfg=dict(roi_head=dict(mask_thr_binary=0.5)),
)
