_base_ = [
    '../_base_/models/co_deformable_detr_r50.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/co_dino_1x.py',
    '../_base_/default_runtime.py',
]

# Where the attention looks moves slowly, too.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'sampling_offsets': dict(lr_mult=0.1)})
)
