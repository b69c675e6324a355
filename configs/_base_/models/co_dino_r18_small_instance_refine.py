_base_ = ['./co_dino_r18_small.py', './refine_masks.py']

model = _base_.pop('refine_masks')
heads = model['mask_head']
heads['mask_roi_extractor'].update(
    roi_layer=dict(type='RoIAlign', output_size=8, sampling_ratio=0),
    out_channels=128,
    featmap_strides=[8, 16, 32, 64],
)
# Loss weights are the usual ones times 4, as of the co-heads; that of the
# masks is 1.33 times the usual one.
heads['mask_head'].update(
    in_channels=128,
    conv_out_channels=64,
    semantic_stride=8,
    stage_sizes=[8, 16, 32],
    stage_loss_weights=[0.5, 0.75, 1.0],
    loss_weight=5.32,
)
heads['mask_iou_head'].update(
    roi_feat_size=8,
    in_channels=128,
    conv_out_channels=64,
    fc_out_channels=128,
    loss_iou=dict(type='mmdet.MSELoss', loss_weight=2.0),
)
model['train_cfg']['mask_head']['sampler'].update(num=64)
del heads
