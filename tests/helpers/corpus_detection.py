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
"""

CASES = parse_cases(_TEXT)
