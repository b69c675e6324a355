"""Wrong configs of detectors, as reported in the hosts' trackers."""

from helpers.corpus_bases import parse_cases

# Each: its name, what it inherits, and where the mistake was reported; after a
# tilde, expressions of which a finding must have one; what the user set; and,
# after the dashes, the same after the remedy was followed.
_TEXT = r"""
== eighty_classes faster open-mmlab/mmdetection#8734
~ num_classes is 80.*IndexError
model = dict(roi_head=dict(bbox_head=dict(num_classes=80)))
--
model = dict(roi_head=dict(bbox_head=dict(num_classes=6)))

== mask_head_forgotten mask open-mmlab/mmdetection#7460
~ mask_head.num_classes
model = dict(roi_head=dict(mask_head=dict(num_classes=80)))
--
model = dict(roi_head=dict(mask_head=dict(num_classes=6)))

== too_few_classes retina open-mmlab/mmdetection#6218
~ num_classes.*5
model = dict(bbox_head=dict(num_classes=5))
--
model = dict(bbox_head=dict(num_classes=6))

== metainfo_not_passed faster open-mmlab/mmdetection#11858
~ metainfo
model = dict(roi_head=dict(bbox_head=dict(num_classes=6)))
metainfo = dict(classes=('circle', 'square', 'triangle', 'star', 'ring',
                         'cross'))
train_dataloader = dict(dataset=dict(metainfo=None))
val_dataloader = dict(dataset=dict(metainfo=None))
--
metainfo = dict(classes=('circle', 'square', 'triangle', 'star', 'ring',
                         'cross'))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))

== capital_classes faster open-mmlab/mmdetection#9610
~ CLASSES.*classes
metainfo = dict(_delete_=True, CLASSES=(
    'circle', 'square', 'triangle', 'star', 'ring', 'cross'))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))
--
metainfo = dict(classes=(
    'circle', 'square', 'triangle', 'star', 'ring', 'cross'))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))

== classes_of_the_wrapper retina open-mmlab/mmdetection#4199
~ RepeatDataset.*metainfo
~ metainfo.*RepeatDataset
metainfo = dict(classes=('circle', 'square', 'triangle', 'star', 'ring',
                         'cross'))
train_dataloader = dict(dataset=dict(
    _delete_=True, type='RepeatDataset', times=2, metainfo=metainfo,
    dataset=dict(
        type='CocoDataset', data_root='DATA/',
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/'),
        pipeline={{_base_.train_pipeline}})))
--
metainfo = dict(classes=('circle', 'square', 'triangle', 'star', 'ring',
                         'cross'))
train_dataloader = dict(dataset=dict(
    _delete_=True, type='RepeatDataset', times=2,
    dataset=dict(
        type='CocoDataset', data_root='DATA/', metainfo=metainfo,
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/'),
        pipeline={{_base_.train_pipeline}})))

== string_for_a_tuple retina open-mmlab/mmdetection#9875
~ classes.*(tuple|string|comma)
metainfo = dict(classes=('circle'))
model = dict(bbox_head=dict(num_classes=1))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))
--
metainfo = dict(classes=('circle',))
model = dict(bbox_head=dict(num_classes=1))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))

== other_names retina open-mmlab/mmdetection#10668
~ COCO007
metainfo = dict(classes=('Circle', 'Square', 'Triangle', 'Star', 'Ring',
                         'Cross'))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))
--
metainfo = dict(classes=('circle', 'square', 'triangle', 'star', 'ring',
                         'cross'))
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))

== no_metainfo_in_val faster open-mmlab/mmdetection#9606
~ (HEAD003|CFG008).*(classes|metainfo)
val_dataloader = dict(dataset=dict(metainfo=None))
--
val_dataloader = dict(dataset=dict(metainfo={{_base_.metainfo}}))

== evaluator_of_train retina open-mmlab/mmdetection#11739
~ ann_file
val_evaluator = dict(ann_file='DATA/annotations/train.json')
--
val_evaluator = dict(ann_file='DATA/annotations/val.json')

== evaluator_of_coco retina open-mmlab/mmyolo#969
~ (val_evaluator|ann_file).*instances_val2017
val_evaluator = dict(ann_file='data/coco/annotations/instances_val2017.json')
--
val_evaluator = dict(ann_file='DATA/annotations/val.json')

== dict_for_a_list cascade open-mmlab/mmdetection#3556
~ bbox_head.*list
model = dict(roi_head=dict(bbox_head=dict(num_classes=6)))
--
model = dict(roi_head=dict(bbox_head=[
    dict(type='Shared2FCBBoxHead', in_channels=8, fc_out_channels=8,
         roi_feat_size=7, num_classes=6, reg_class_agnostic=True,
         bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
         loss_cls=dict(type='CrossEntropyLoss'),
         loss_bbox=dict(type='SmoothL1Loss', beta=1.0))] * 3))

== heads_in_part cascade open-mmlab/mmdetection#6340
~ bbox_head.*(list|inherit|replace|in_channels)
~ model\.roi_head\.bbox_head\[0\]
head = dict(type='Shared2FCBBoxHead', num_classes=6)
model = dict(roi_head=dict(bbox_head=[head, head, head]))
--
model = dict(roi_head=dict(bbox_head=[
    dict(type='Shared2FCBBoxHead', in_channels=8, fc_out_channels=8,
         roi_feat_size=7, num_classes=6, reg_class_agnostic=True,
         bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
         loss_cls=dict(type='CrossEntropyLoss'),
         loss_bbox=dict(type='SmoothL1Loss', beta=1.0))] * 3))

== adam_with_momentum retina open-mmlab/mmdetection#8123
~ momentum.*_delete_
~ _delete_.*momentum
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=0.0001))
--
optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=0.0001))

== l1_with_beta cascade open-mmlab/mmdetection#10972
~ beta.*_delete_
~ _delete_.*beta
model = dict(rpn_head=dict(loss_bbox=dict(type='L1Loss', loss_weight=1.0)))
--
model = dict(rpn_head=dict(loss_bbox=dict(
    _delete_=True, type='L1Loss', loss_weight=1.0)))

== boxes_not_decoded cascade open-mmlab/mmdetection#3949
~ LOSS007.*reg_decoded_bbox
model = dict(rpn_head=dict(loss_bbox=dict(
    _delete_=True, type='IoULoss', loss_weight=1.0)))
--
model = dict(rpn_head=dict(reg_decoded_bbox=True, loss_bbox=dict(
    _delete_=True, type='IoULoss', loss_weight=1.0)))

== deltas_in_pixels faster open-mmlab/mmdetection#4454
~ LOSS007.*L1Loss.*pixels
model = dict(roi_head=dict(bbox_head=dict(reg_decoded_bbox=True)))
--
model = dict(roi_head=dict(bbox_head=dict(reg_decoded_bbox=False)))

== backbone_without_delete retina open-mmlab/mmdetection#5856
~ (base_channels|depth|style|frozen_stages).*_delete_
~ _delete_.*(base_channels|depth)
model = dict(
    backbone=dict(type='SwinTransformer', embed_dims=8, depths=[1, 1, 1, 1],
                  num_heads=[1, 2, 4, 8], window_size=4),
    neck=dict(in_channels=[8, 16, 32, 64]))
--
model = dict(
    backbone=dict(_delete_=True, type='SwinTransformer', embed_dims=8,
                  depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8], window_size=4,
                  out_indices=(1, 2, 3)),
    neck=dict(in_channels=[16, 32, 64], start_level=0))

== delete_in_a_list retina open-mmlab/mmsegmentation#961
~ _delete_
val_evaluator = [dict(_delete_=True, type='CocoMetric', metric='bbox',
                      ann_file='DATA/annotations/val.json')]
--
val_evaluator = [dict(type='CocoMetric', metric='bbox',
                      ann_file='DATA/annotations/val.json')]

== channels_of_the_neck retina mzr1996/backbone-example#2
~ model\.neck
~ neck\.in_channels
model = dict(neck=dict(in_channels=[8, 16, 32, 64]))
--
model = dict(neck=dict(in_channels=[4, 8, 16, 32]))

== levels_of_the_neck faster open-mmlab/mmdetection#9657
~ out_indices
~ in_channels
model = dict(backbone=dict(out_indices=(1, 2, 3)))
--
model = dict(backbone=dict(out_indices=(0, 1, 2, 3)))

== too_few_outputs faster ucas-vg/PointTinyBenchmark#56
~ model\.neck
~ num_outs
model = dict(neck=dict(num_outs=3))
--
model = dict(neck=dict(num_outs=5))

== strides_of_the_anchors faster open-mmlab/mmdetection#2120
~ strides
~ anchor_generator
~ prior_generator\.num_levels
model = dict(rpn_head=dict(anchor_generator=dict(strides=[4, 8, 16, 32])))
--
model = dict(rpn_head=dict(anchor_generator=dict(strides=[4, 8, 16, 32, 64])))

== mixup_without_wrapper retina open-mmlab/mmdetection#6122
~ MultiImageMixDataset
~ mix_results
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='MixUp', img_scale=(64, 64), pad_val=114.0),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
--
train_pipeline = [
    dict(type='MixUp', img_scale=(64, 64), pad_val=114.0),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(
    _delete_=True, type='MultiImageMixDataset', pipeline=train_pipeline,
    dataset=dict(
        type='CocoDataset', data_root='DATA/', metainfo={{_base_.metainfo}},
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/'),
        pipeline=[dict(type='LoadImageFromFile'),
                  dict(type='LoadAnnotations', with_bbox=True)])))

== mosaic_inside yolox open-mmlab/mmdetection#5916
~ MultiImageMixDataset
~ mix_results
train_dataloader = dict(dataset=dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Mosaic', img_scale=(64, 64), pad_val=114.0)])))
--
train_dataloader = dict(dataset=dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True)])))

== mosaic_in_val yolox open-mmlab/mmdetection#7314
~ MultiImageMixDataset
~ mix_results
val_dataloader = dict(dataset=dict(pipeline={{_base_.train_pipeline}}))
--
val_dataloader = dict(dataset=dict(pipeline={{_base_.test_pipeline}}))

== coco_over_the_wrapper yolox open-mmlab/mmdetection#7024
~ _delete_
~ 'dataset'
train_dataloader = dict(dataset=dict(
    type='CocoDataset', data_root='DATA/',
    metainfo={{_base_.metainfo}},
    ann_file='annotations/train.json',
    data_prefix=dict(img='img_dir/train/')))
--
train_dataloader = dict(dataset=dict(dataset=dict(
    type='CocoDataset', data_root='DATA/',
    metainfo={{_base_.metainfo}},
    ann_file='annotations/train.json',
    data_prefix=dict(img='img_dir/train/'))))

== paths_at_the_wrapper yolox open-mmlab/mmdetection#10674
~ (data_root|ann_file).*MultiImageMixDataset
~ MultiImageMixDataset.*(data_root|ann_file)
train_dataloader = dict(dataset=dict(
    data_root='DATA/', ann_file='annotations/train.json'))
--
train_dataloader = dict(dataset=dict(dataset=dict(
    data_root='DATA/', ann_file='annotations/train.json')))

== img_prefix retina open-mmlab/mmdetection#11958
~ img_prefix
train_dataloader = dict(dataset=dict(img_prefix='img_dir/train/'))
--
train_dataloader = dict(dataset=dict(data_prefix=dict(img='img_dir/train/')))

== prefix_is_a_string yolox open-mmlab/mmdetection#10159
~ data_prefix
train_dataloader = dict(dataset=dict(dataset=dict(
    data_prefix='DATA/img_dir/train/')))
--
train_dataloader = dict(dataset=dict(dataset=dict(
    data_prefix=dict(img='img_dir/train/'))))

== pipeline_of_2x retina open-mmlab/mmdetection#9612
~ MultiScaleFlipAug
~ img_scale
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='MultiScaleFlipAug', img_scale=(64, 64), flip=False,
         transforms=[dict(type='Resize', keep_ratio=True),
                     dict(type='RandomFlip'),
                     dict(type='Pad', size_divisor=32)]),
    dict(type='PackDetInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
--
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                    'scale_factor')),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))

== nothing_packed retina open-mmlab/mmdetection#10488
~ PackDetInputs
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
--
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== no_scope retina open-mmlab/mmdetection#10900
~ default_scope
~ mmdet\.
default_scope = 'mmengine'
--
default_scope = 'mmdet'

== normalized_twice retina open-mmlab/mmdetection#8913
~ PIPE008.*Normalize
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='Normalize', mean=[123.675, 116.28, 103.53],
         std=[58.395, 57.12, 57.375], to_rgb=True),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
--
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== no_boxes_loaded retina open-mmlab/mmdetection#1493
~ with_bbox
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=False),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
--
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== no_masks_loaded mask open-mmlab/mmdetection#10877
~ with_mask
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
--
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

== no_scale_factor retina open-mmlab/mmdetection#5740
~ scale_factor
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape')),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
--
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                    'scale_factor')),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))

== no_train_loader retina open-mmlab/mmdetection3d#2744
~ LOOP001.*train
~ train_dataloader
train_dataloader = None
--
train_dataloader = {{_base_.train_dataloader}}

== no_val_loader retina open-mmlab/mmrazor#363
~ LOOP001.*val
val_dataloader = None
--
val_dataloader = None
val_evaluator = None
val_cfg = None

== config_of_2x retina open-mmlab/mmdetection#11697
~ KEY002.*(samples_per_gpu|data|train_dataloader)
data = dict(samples_per_gpu=4, workers_per_gpu=2)
optimizer = dict(type='SGD', lr=0.0025, momentum=0.9, weight_decay=0.0001)
lr_config = dict(policy='step', warmup='linear', step=[8, 11])
runner = dict(type='EpochBasedRunner', max_epochs=12)
--
train_dataloader = dict(batch_size=4)
optim_wrapper = dict(optimizer=dict(lr=0.0025))

== accumulation_of_2x codino open-mmlab/mmdetection#11232
~ KEY002.*optimizer_config
optimizer_config = dict(type='GradientCumulativeOptimizerHook',
                        cumulative_iters=4)
--
optim_wrapper = dict(accumulative_counts=4)

== resume_from retina open-mmlab/mmpose#1351
~ KEY002.*resume_from
resume_from = 'work_dirs/retina/epoch_30.pth'
--
resume = True

== flag_in_train_cfg retina open-mmlab/mmdetection#2117
~ KEY003.*find_unused_parameters
train_cfg = dict(find_unused_parameters=True)
--
find_unused_parameters = True

== unused_norm retina open-mmlab/mmdetection#8392
~ DDP001.*norm0
model = dict(
    backbone=dict(_delete_=True, type='SwinTransformer', embed_dims=8,
                  depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8], window_size=4,
                  out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[8, 16, 32, 64]))
--
model = dict(
    backbone=dict(_delete_=True, type='SwinTransformer', embed_dims=8,
                  depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8], window_size=4,
                  out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[8, 16, 32, 64]))
find_unused_parameters = True

== checkpoint_and_flag retina megvii-research/PETR#98
~ DDP00
~ with_cp
~ checkpoint
model = dict(
    backbone=dict(_delete_=True, type='SwinTransformer', embed_dims=8,
                  depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8], window_size=4,
                  with_cp=True, out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[8, 16, 32, 64]))
find_unused_parameters = True
--
model = dict(
    backbone=dict(_delete_=True, type='SwinTransformer', embed_dims=8,
                  depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8], window_size=4,
                  with_cp=False, out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[8, 16, 32, 64]))
find_unused_parameters = True

== flag_without_need retina ZhangGongjie/Meta-DETR#60
~ DDP005
find_unused_parameters = True
--
find_unused_parameters = False

== one_hook_no_list retina open-mmlab/mmdetection#4509
~ HOOK001
custom_hooks = dict(type='EMAHook', momentum=0.0002)
--
custom_hooks = [dict(type='EMAHook', momentum=0.0002)]

== best_of_2x retina open-mmlab/mmdetection#6451
~ save_best
default_hooks = dict(checkpoint=dict(save_best='bbox_mAP'))
--
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP'))

== worst_of_all retina open-mmlab/mmocr#1130
~ EVAL004.*greater
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP', rule='less'))
--
default_hooks = dict(checkpoint=dict(
    save_best='coco/bbox_mAP', rule='greater'))

== stops_too_early retina open-mmlab/mmdetection#12302
~ EVAL006.*min_delta
default_hooks = dict(early_stopping=dict(
    type='EarlyStoppingHook', monitor='coco/bbox_mAP', patience=10,
    rule='greater'))
--
default_hooks = dict(early_stopping=dict(
    type='EarlyStoppingHook', monitor='coco/bbox_mAP', patience=10,
    rule='greater', min_delta=0.001))

== best_of_nothing retina open-mmlab/mmsegmentation#2168
~ EVAL005.*best checkpoint
val_dataloader = None
val_cfg = None
val_evaluator = None
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP'))
--
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP'))

== loggers_of_1x mask open-mmlab/mmdetection#10207
~ TYPE001.*LoggerHook.*visualizer
custom_hooks = [dict(type='TextLoggerHook'),
                dict(type='TensorboardLoggerHook')]
--
default_hooks = dict(logger=dict(type='LoggerHook', interval=50))
visualizer = dict(vis_backends=[dict(type='LocalVisBackend')])

== hooks_of_1x retina open-mmlab/mmcv#3011
~ TYPE001.*param_scheduler
custom_hooks = [dict(type='CosineAnnealingLrUpdaterHook', min_lr=0)]
--
param_scheduler = [dict(type='CosineAnnealingLR', eta_min=0)]

== two_equal_backends retina open-mmlab/mmdetection#11545
~ vis_backend
visualizer = dict(vis_backends=[dict(type='LocalVisBackend'),
                                dict(type='LocalVisBackend')])
--
visualizer = dict(vis_backends=[dict(type='LocalVisBackend')])

== scaling_without_base retina open-mmlab/mmdetection#10569
~ auto_scale_lr.*base_batch_size
auto_scale_lr = dict(_delete_=True, enable=True)
--
auto_scale_lr = dict(enable=True, base_batch_size=16)

== rate_of_eight_gpus retina open-mmlab/mmdetection#3446
~ LOOP006.*lr=0.01 is 8 times as large
train_dataloader = dict(batch_size=2)
--
optim_wrapper = dict(optimizer=dict(lr=0.00125))

== epochs_in_iterations retina open-mmlab/mmdetection#7364
~ SCHED001
~ by_epoch
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=12000,
                 val_interval=1000)
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))
--
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=12000,
                 val_interval=1000)
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, end=5),
    dict(type='MultiStepLR', end=12000, milestones=[8000, 11000], gamma=0.1,
         by_epoch=False),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=1000))

== never_switched yolox open-mmlab/mmdetection#10544
~ LOOP005
~ num_last_epochs
~ SCHED002
train_cfg = dict(max_epochs=10)
--
train_cfg = dict(max_epochs=30)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, end=30)]

== two_ways_to_weights retina open-mmlab/mmdetection#6996
~ pretrained
model = dict(backbone=dict(
    pretrained='torchvision://resnet18',
    init_cfg=dict(_delete_=True, type='Pretrained',
                  checkpoint='torchvision://resnet18')))
--
model = dict(backbone=dict(init_cfg=None))

== weights_of_a_backbone retina open-mmlab/mmpretrain#18
~ load_from
load_from = 'DATA/backbone.pth'
--
model = dict(backbone=dict(init_cfg=dict(
    _delete_=True, type='Pretrained', checkpoint='DATA/backbone.pth')))

== no_prefix retina open-mmlab/mmfewshot#73
~ CKPT.*(prefix|fit|match)
model = dict(backbone=dict(init_cfg=dict(
    _delete_=True, type='Pretrained', checkpoint='DATA/detector.pth')))
--
model = dict(backbone=dict(init_cfg=dict(
    _delete_=True, type='Pretrained', checkpoint='DATA/detector.pth',
    prefix='backbone.')))

== frozen_from_scratch retina open-mmlab/mmdetection#10567
~ CKPT010.*frozen_stages=1.*norm_eval=True
model = dict(backbone=dict(frozen_stages=1, norm_eval=True, init_cfg=None))
--
model = dict(backbone=dict(frozen_stages=-1, norm_eval=False, init_cfg=None))

== norms_from_scratch faster open-mmlab/mmdetection#5109
~ CKPT010.*norm_eval
model = dict(backbone=dict(norm_eval=True, init_cfg=None))
--
model = dict(backbone=dict(norm_eval=False, init_cfg=None))

== weights_of_another_depth retina open-mmlab/mmdetection#10731
~ CKPT011.*depth 50.*depth 18
model = dict(backbone=dict(init_cfg=dict(
    _delete_=True, type='Pretrained', checkpoint='torchvision://resnet50')))
--
model = dict(backbone=dict(init_cfg=dict(
    _delete_=True, type='Pretrained', checkpoint='DATA/backbone.pth')))

== more_queries_than_places dino Czm369/MixPL#8
~ PIPE007.*num_queries=900.*has 85
model = dict(num_queries=900)
--
model = dict(num_queries=85)

== more_objects_than_queries dino IDEA-Research/DINO#52
~ HEAD007.*max_per_img
model = dict(num_queries=40)
--
model = dict(num_queries=40, test_cfg=dict(max_per_img=100))

== small_pictures_of_a_test dino IDEA-Research/detrex#180
~ PIPE007.*val_dataloader
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(40, 40), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                    'scale_factor')),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
--
val_dataloader = dict(dataset=dict(pipeline={{_base_.test_pipeline}}))

== neck_not_imported retina open-mmlab/mmdetection#7796
~ AugFPN.*(custom_imports|registered)
model = dict(neck=dict(type='AugFPN'))
--
model = dict(neck=dict(type='FPN'))

== import_that_fails retina open-mmlab/mmdetection#5974
~ mmdet_refine
~ custom_imports
custom_imports = dict(imports=['mmdet_refine.heads'],
                      allow_failed_imports=False)
--
custom_imports = dict(imports=['helpers.preflight_models'],
                      allow_failed_imports=False)

== metric_of_voc retina open-mmlab/mmdetection#3245
~ VOCMetric
~ val_evaluator
val_evaluator = dict(_delete_=True, type='VOCMetric', metric='bbox')
--
val_evaluator = dict(_delete_=True, type='CocoMetric', metric='bbox',
                     ann_file='DATA/annotations/val.json')

== one_of_three_heads codino Sense-X/Co-DETR#64
~ query_head.num_classes
~ num_classes.*5
model = dict(query_head=dict(num_classes=5))
--
model = dict(query_head=dict(num_classes=6))
== one_for_the_background faster open-mmlab/mmdetection#2781
~ num_classes is 7, one more.*IndexError
model = dict(roi_head=dict(bbox_head=dict(num_classes=7)))
--
model = dict(roi_head=dict(bbox_head=dict(num_classes=6)))

== fewer_classes_in_val faster open-mmlab/mmdetection#8529
~ HEAD003.*4 classes.*IndexError
metainfo = dict(classes=('circle', 'square', 'triangle', 'star'))
val_dataloader = dict(dataset=dict(metainfo=metainfo))
--
metainfo = dict(classes=('circle', 'square', 'triangle', 'star', 'ring',
                         'cross'))
val_dataloader = dict(dataset=dict(metainfo=metainfo))

== masks_of_voc mask open-mmlab/mmdetection#10825
~ PIPE003.*VOCDataset.*KeyError.*mask_head=None
train_dataloader = dict(dataset=dict(
    _delete_=True, type='VOCDataset', data_root='DATA/',
    ann_file='VOC2007/train.txt', data_prefix=dict(sub_data_root='VOC2007/'),
    metainfo={{_base_.metainfo}}, pipeline={{_base_.train_pipeline}}))
--
model = dict(roi_head=dict(mask_head=None, mask_roi_extractor=None))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=False),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(
    _delete_=True, type='VOCDataset', data_root='DATA/',
    ann_file='VOC2007/train.txt', data_prefix=dict(sub_data_root='VOC2007/'),
    metainfo={{_base_.metainfo}}, pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')

== masks_of_yolo mask open-mmlab/mmdetection#10193
~ PIPE003.*YOLODataset.*KeyError.*CocoDataset
train_dataloader = dict(dataset=dict(
    _delete_=True, type='mmext.YOLODataset', ann_file='DATA/img_dir/train',
    metainfo={{_base_.metainfo}}, pipeline={{_base_.train_pipeline}}))
--
train_dataloader = dict(dataset=dict(type='CocoDataset'))

== boxes_for_masks mask open-mmlab/mmdetection#10961
~ COCO016.*no annotation of the file has one
train_dataloader = dict(dataset=dict(ann_file='annotations/boxes.json'))
--
train_dataloader = dict(dataset=dict(ann_file='annotations/train.json'))

== all_pictures_too_small retina open-mmlab/mmdetection#3628
~ CFG012.*0 of 8.*lower min_size
train_dataloader = dict(dataset=dict(
    filter_cfg=dict(filter_empty_gt=True, min_size=512)))
--
train_dataloader = dict(dataset=dict(
    filter_cfg=dict(filter_empty_gt=True, min_size=32)))

== mostly_empty retina open-mmlab/mmdetection#2691
~ CFG012.*8 of 98.*filter_empty_gt=False
train_dataloader = dict(dataset=dict(
    ann_file='annotations/mostly_empty.json'))
--
train_dataloader = dict(dataset=dict(
    ann_file='annotations/mostly_empty.json',
    filter_cfg=dict(filter_empty_gt=False)))

== joined_in_other_order retina open-mmlab/mmdetection#10499
~ DATA009.*classes:.*in datasets\[1\].*another class
part = dict(type='CocoDataset', data_root='DATA/',
            ann_file='annotations/train.json',
            data_prefix=dict(img='img_dir/train/'),
            pipeline={{_base_.train_pipeline}})
names = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')
parts = [dict(part, metainfo=dict(classes=names)),
         dict(part, metainfo=dict(classes=names[::-1]))]
train_dataloader = dict(dataset=dict(
    _delete_=True, type='ConcatDataset', datasets=parts))
--
part = dict(type='CocoDataset', data_root='DATA/',
            ann_file='annotations/train.json',
            data_prefix=dict(img='img_dir/train/'),
            metainfo={{_base_.metainfo}}, pipeline={{_base_.train_pipeline}})
train_dataloader = dict(dataset=dict(
    _delete_=True, type='ConcatDataset', datasets=[part, part]))

== joined_to_evaluate retina open-mmlab/mmdetection#10474
~ DATA009.*metrics fail
part = dict(type='CocoDataset', data_root='DATA/', test_mode=True,
            ann_file='annotations/val.json',
            data_prefix=dict(img='img_dir/val/'),
            pipeline={{_base_.test_pipeline}})
names = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')
own = dict(classes=names, palette=[(20 * n, 0, 0) for n in range(6)])
parts = [dict(part, metainfo=dict(classes=names)), dict(part, metainfo=own)]
val_dataloader = dict(dataset=dict(
    _delete_=True, type='ConcatDataset', datasets=parts))
--

== two_years retina open-mmlab/mmdetection#9195
~ DATA009.*VOC2012.*ignore_keys
old, new = [
    dict(type='VOCDataset', data_root='DATA/', ann_file=f'{year}/train.txt',
         data_prefix=dict(sub_data_root=f'{year}/'),
         metainfo={{_base_.metainfo}}, pipeline={{_base_.train_pipeline}})
    for year in ('VOC2007', 'VOC2012')]
train_dataloader = dict(dataset=dict(
    _delete_=True, type='ConcatDataset', datasets=[old, new]))
--
"""

CASES = parse_cases(_TEXT)
