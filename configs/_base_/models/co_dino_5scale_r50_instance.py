_base_ = './co_dino_5scale_r50.py'

# A mask branch on the Faster R-CNN head, as Mask R-CNN has it. It learns on
# the proposals, and is evaluated on the boxes of the query head.
model = dict(
    data_preprocessor=dict(pad_mask=True, mask_pad_value=0),
    # False detects boxes only.
    eval_masks=True,
    roi_head=dict(
        mask_roi_extractor=dict(
            type='mmdet.SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=14, sampling_ratio=0),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32, 64],
            finest_scale=56,
        ),
        mask_head=dict(
            type='mmdet.FCNMaskHead',
            num_convs=4,
            in_channels=256,
            conv_out_channels=256,
            # The usual weight times 12, as of the other co-heads.
            loss_mask=dict(
                type='mmdet.CrossEntropyLoss', use_mask=True, loss_weight=12.0
            ),
        ),
    ),
    train_cfg=dict(roi_head=dict(mask_size=28)),
    test_cfg=dict(
        # 100 masks of whole pictures instead of 300 at a time.
        query_head=dict(max_per_img=100),
        roi_head=dict(mask_thr_binary=0.5),
    ),
)
