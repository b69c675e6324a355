"""Right configs, in which the tool must find no error.

Some are the hosts' own, as they ship but for the width of the model and the
data, which are absent; the others are what projects make of them.
"""

from pathlib import Path

from helpers.corpus_bases import BASES, CONFIGS, write_base

# Each: its name, what it inherits (a base, or a config of a host), and what
# is set.
_TEXT = """
== moving_average retina
custom_hooks = [
    dict(type='EMAHook', ema_type='ExpMomentumEMA', momentum=0.0002,
         update_buffers=True, priority=49),
    dict(type='EarlyStoppingHook', monitor='coco/bbox_mAP', patience=3),
    dict(type='CheckInvalidLossHook', interval=50),
]

== own_keys retina
project = 'shapes'
num_gpus = 2
annotators = ['one', 'two']
export = dict(onnx=True, opset=17)

== two_data_sets retina
dataset = {{_base_.train_dataloader.dataset}}
train_dataloader = dict(dataset=dict(
    _delete_=True, type='ConcatDataset', datasets=[dataset, dataset]))

== repeated faster
train_dataloader = dict(dataset=dict(
    _delete_=True, type='RepeatDataset', times=3,
    dataset={{_base_.train_dataloader.dataset}}))

== balanced retina
train_dataloader = dict(dataset=dict(
    _delete_=True, type='ClassBalancedDataset', oversample_thr=0.5,
    dataset={{_base_.train_dataloader.dataset}}))

== many_scales mask
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomChoice', transforms=[
        [dict(type='RandomChoiceResize', scales=[(64, 48), (64, 64)],
              keep_ratio=True)],
        [dict(type='RandomChoiceResize', scales=[(80, 80), (96, 96)],
              keep_ratio=True),
         dict(type='RandomCrop', crop_type='absolute_range',
              crop_size=(48, 64), allow_negative_crop=True),
         dict(type='RandomChoiceResize', scales=[(64, 48), (64, 64)],
              keep_ratio=True)]]),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== by_iterations retina
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=9000,
                 val_interval=1000)
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, end=500),
    dict(type='MultiStepLR', by_epoch=False, end=9000,
         milestones=[6000, 8000]),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1000,
                                     max_keep_ckpts=2))
log_processor = dict(by_epoch=False)

== by_epochs psp
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=20,
                 val_interval=2)
train_dataloader = dict(sampler=dict(type='DefaultSampler', shuffle=True))
param_scheduler = [dict(type='PolyLR', eta_min=1e-4, power=0.9, by_epoch=True,
                        begin=0, end=20, convert_to_iter_based=True)]
default_hooks = dict(
    logger=dict(log_metric_by_epoch=True),
    checkpoint=dict(by_epoch=True, interval=2, save_best='mIoU'))
log_processor = dict(by_epoch=True)

== cosine_after_warm_up faster
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=1,
         convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=1,
         end=12, convert_to_iter_based=True),
]

== all_frozen retina
model = dict(backbone=dict(frozen_stages=4, norm_eval=True, init_cfg=dict(
    _delete_=True, type='Pretrained', checkpoint='DATA/backbone.pth')))

== half_precision faster
optim_wrapper = dict(type='AmpOptimWrapper', loss_scale='dynamic',
                     clip_grad=dict(max_norm=35, norm_type=2))

== accumulated retina
optim_wrapper = dict(accumulative_counts=4)
auto_scale_lr = dict(enable=True, base_batch_size=16)

== own_rates faster
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0, bypass_duplicate=True,
                       custom_keys={'backbone': dict(lr_mult=0.1)}))

== two_metrics mask
val_evaluator = [
    dict(type='CocoMetric', ann_file='DATA/annotations/val.json',
         metric=['bbox', 'segm'], classwise=True),
    dict(type='VOCMetric', metric='mAP', eval_mode='11points'),
]
default_hooks = dict(checkpoint=dict(save_best='coco/segm_mAP',
                                     rule='greater'))

== never_validated retina
val_cfg = None
val_dataloader = None
val_evaluator = None

== some_classes retina
metainfo = dict(classes=('circle', 'star'), palette=[(220, 20, 60), (0, 0, 9)])
model = dict(bbox_head=dict(num_classes=2))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))
test_dataloader = dict(dataset=dict(metainfo=metainfo))

== checkpointed_swin retina
model = dict(
    backbone=dict(_delete_=True, type='SwinTransformer', embed_dims=8,
                  depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], window_size=4,
                  out_indices=(1, 2, 3), with_cp=True),
    neck=dict(in_channels=[16, 32, 64], start_level=0))

== copy_and_paste mask
train_dataloader = dict(dataset=dict(
    _delete_=True, type='MultiImageMixDataset',
    dataset=dict(
        type='CocoDataset', data_root='DATA/', metainfo={{_base_.metainfo}},
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='Resize', scale=(64, 64)),
        ]),
    pipeline=[dict(type='CopyPaste', max_num_pasted=2),
              dict(type='PackDetInputs')]))

== switched_pipeline yolox
custom_hooks = [
    dict(type='YOLOXModeSwitchHook', num_last_epochs=15, priority=48),
    dict(type='SyncNormHook', priority=48),
    dict(type='PipelineSwitchHook', switch_epoch=285, switch_pipeline=[
        dict(type='Resize', scale=(64, 64), keep_ratio=True),
        dict(type='PackDetInputs')]),
]

== test_time_augmented retina
tta_model = dict(type='DetTTAModel', tta_cfg=dict(
    nms=dict(type='nms', iou_threshold=0.5), max_per_img=100))
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='TestTimeAug', transforms=[
        [dict(type='Resize', scale=(64, 64), keep_ratio=True)],
        [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)],
        [dict(type='LoadAnnotations', with_bbox=True)],
        [dict(type='PackDetInputs',
              meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                         'scale_factor', 'flip', 'flip_direction'))]]),
]

== weights_given retina
load_from = 'DATA/detector.pth'

== backbone_weights_given retina
model = dict(backbone=dict(init_cfg=dict(
    _delete_=True, type='Pretrained', checkpoint='DATA/detector.pth',
    prefix='backbone.')))

== watched retina
visualizer = dict(
    vis_backends=[dict(type='LocalVisBackend', img_save_dir='pictures')])
default_hooks = dict(
    logger=dict(interval=10),
    visualization=dict(draw=True, interval=20))
randomness = dict(seed=1, diff_rank_seed=True, deterministic=False)

== binary psp
metainfo = dict(classes=('ground', 'shape'), palette=[[0] * 3, [255] * 3])
loss = dict(type='CrossEntropyLoss', use_sigmoid=True)
head = dict(num_classes=2, out_channels=1, threshold=0.4, loss_decode=loss)
model = dict(decode_head=head, auxiliary_head=head)
train_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_train')))
val_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_val')))
test_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_val')))

== weighted_losses psp
model = dict(decode_head=dict(loss_decode=[
    dict(type='CrossEntropyLoss', loss_name='loss_ce', loss_weight=1.0,
         class_weight=[0.5, 1, 1, 1, 1, 1, 1]),
    dict(type='DiceLoss', loss_name='loss_dice', loss_weight=3.0)]))

== hard_pixels psp
model = dict(decode_head=dict(sampler=dict(
    type='OHEMPixelSampler', thresh=0.7, min_kept=100)))

== windows psp
model = dict(test_cfg=dict(mode='slide', crop_size=(32, 32), stride=(24, 24)))
val_evaluator = dict(iou_metrics=['mIoU', 'mFscore'])
default_hooks = dict(checkpoint=dict(save_best='mFscore',
                                     rule='greater'))

== no_auxiliary psp
model = dict(auxiliary_head=None)

== strong_augmentation segformer
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomChoiceResize', scales=[64, 80, 96],
         resize_type='ResizeShortestEdge', max_size=128),
    dict(type='RandomCrop', crop_size=(64, 64), cat_max_ratio=0.75),
    dict(type='RandomRotate', prob=0.5, degree=20, seg_pad_val=255),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== crops_of_several_sizes psp
crop_size = (256, 256)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(320, 320), ratio_range=(0.6, 1.0),
         keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='PackSegInputs'),
]
model = dict(data_preprocessor=dict(size=crop_size))
train_dataloader = dict(batch_size=4, dataset=dict(pipeline=train_pipeline))

== masks_alone_matter psp
model = dict(
    data_preprocessor=dict(size=None, size_divisor=32),
    decode_head=dict(ignore_index=255), auxiliary_head=dict(ignore_index=255))

== fcos mmdet:fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py
model = dict(
    backbone=dict(depth=18, base_channels=4, stem_channels=4, init_cfg=None,
                  frozen_stages=-1, norm_eval=False),
    neck=dict(in_channels=[4, 8, 16, 32], out_channels=32),
    bbox_head=dict(in_channels=32, feat_channels=32, stacked_convs=1))

== atss mmdet:atss/atss_r50_fpn_1x_coco.py
model = dict(
    backbone=dict(depth=18, base_channels=4, stem_channels=4, init_cfg=None,
                  frozen_stages=-1, norm_eval=False),
    neck=dict(in_channels=[4, 8, 16, 32], out_channels=32),
    bbox_head=dict(in_channels=32, feat_channels=32, stacked_convs=1))

== rtmdet mmdet:rtmdet/rtmdet_tiny_8xb32-300e_coco.py
model = dict(
    backbone=dict(deepen_factor=0.167, widen_factor=0.125, init_cfg=None),
    neck=dict(in_channels=[32, 64, 128], out_channels=16),
    bbox_head=dict(in_channels=16, feat_channels=16))

== dino mmdet:dino/dino-4scale_r50_8xb2-12e_coco.py
model = dict(
    num_queries=40,
    backbone=dict(depth=18, base_channels=4, stem_channels=4, init_cfg=None,
                  frozen_stages=-1, norm_eval=False),
    neck=dict(in_channels=[8, 16, 32]),
    encoder=dict(num_layers=1),
    decoder=dict(num_layers=2))

== panoptic_fpn mmdet:panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py
model = dict(
    backbone=dict(depth=18, base_channels=4, stem_channels=4, init_cfg=None,
                  frozen_stages=-1, norm_eval=False),
    neck=dict(in_channels=[4, 8, 16, 32]),
    roi_head=dict(bbox_head=dict(fc_out_channels=16)))

== soft_teacher mmdet:soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_\
180k_semi-0.1-coco.py
detector = dict(
    backbone=dict(depth=18, base_channels=4, stem_channels=4, init_cfg=None,
                  frozen_stages=-1, norm_eval=False),
    neck=dict(in_channels=[4, 8, 16, 32], out_channels=16),
    rpn_head=dict(in_channels=16, feat_channels=16),
    roi_head=dict(bbox_roi_extractor=dict(out_channels=16),
                  bbox_head=dict(in_channels=16, fc_out_channels=16)))
model = dict(detector=detector)

== upernet_swin mmseg:swin/swin-tiny-patch4-window7-in1k-pre_upernet_\
8xb2-160k_ade20k-512x512.py
model = dict(
    backbone=dict(embed_dims=8, depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8],
                  init_cfg=None),
    decode_head=dict(in_channels=[8, 16, 32, 64], channels=16),
    auxiliary_head=dict(in_channels=32, channels=16))

== stdc mmseg:stdc/stdc1_4xb12-80k_cityscapes-512x1024.py
model = dict(backbone=dict(backbone_cfg=dict(channels=(8, 8, 8, 16, 16)),
                           last_in_channels=(16, 16), out_channels=16,
                           ffm_cfg=dict(in_channels=24, out_channels=16)),
             decode_head=dict(in_channels=16, channels=16),
             auxiliary_head=[
                 dict(type='FCNHead', in_channels=16, channels=8, num_convs=1,
                      num_classes=19, in_index=index, concat_input=False,
                      loss_decode=dict(type='CrossEntropyLoss'))
                 for index in (2, 1)])

== pidnet mmext:pidnet/pidnet_small_shapes.py
base_data_root = 'DATA/'

== mae mmext:mae/mae_vit_mini_shapes.py
find_unused_parameters = False

== multi_task mmext:multi_task/hps_fixed_r18_scenes.py
find_unused_parameters = False

== one_checkpoint_hook codino
default_hooks = dict(checkpoint=dict(interval=1, max_keep_ckpts=3,
                                     save_best='coco/bbox_mAP'))
model_wrapper_cfg = dict(static_graph=False)
"""


def _parse(text: str) -> dict[str, tuple[str, str]]:
    results = {f'base_{name}': (name, '') for name in BASES}
    for part in text.split('\n== ')[1:]:
        header, _, lines = part.partition('\n')
        name, base = header.split()
        results[name] = base, lines
    return results


RIGHT = _parse(_TEXT)


def write_right(name: str, data: Path, folder: Path) -> Path:
    """Write a right config."""
    base, text = RIGHT[name]
    if ':' in base:
        host, _, inherited = base.partition(':')
        inherited = CONFIGS[host] / inherited
    else:
        inherited = write_base(base, data, folder)
    path = folder / 'right.py'
    text = text.replace('DATA', str(data))
    path.write_text(f'_base_ = {str(inherited)!r}\n{text}\n')
    return path
