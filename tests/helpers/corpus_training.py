"""Wrong hooks, weights, data and evaluators of detectors, as reported."""

from helpers.corpus_bases import parse_cases

# As in corpus_detection.
_TEXT = r"""
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

== strides_of_anchors_alone cascade open-mmlab/mmdetection#11703
~ STEP010.*rpn_head.prior_generator.*stride 2 where map 0 has 4
model = dict(rpn_head=dict(anchor_generator=dict(
    scales=[2, 4, 8], strides=[2, 4, 8, 16, 32])))
--
model = dict(rpn_head=dict(anchor_generator=dict(
    scales=[2, 4, 8], strides=[4, 8, 16, 32, 64])))

== more_objects_than_are_kept mask open-mmlab/mmdetection#8522
~ HEAD009.*max_per_img is 2.*val_dataloader
model = dict(test_cfg=dict(rcnn=dict(max_per_img=2)))
--
model = dict(test_cfg=dict(rcnn=dict(max_per_img=20)))

== more_objects_than_queries dino facebookresearch/detr#570
~ HEAD009.*num_queries.*is 2.*train_dataloader
model = dict(num_queries=2, test_cfg=dict(max_per_img=12))
--
model = dict(num_queries=20, test_cfg=dict(max_per_img=12))

== larger_in_the_test faster open-mmlab/mmdetection#5094
~ PIPE010.*val_dataloader.*3.75 times larger
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(240, 240), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                    'scale_factor')),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
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
test_dataloader = val_dataloader

== colours_of_twenty_classes retina open-mmlab/mmdetection#11457
~ HEAD008.*3 colours.*6 classes
metainfo = dict(palette=[(9, 0, 0), (0, 9, 0), (0, 0, 9)])
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))
test_dataloader = dict(dataset=dict(metainfo=metainfo))
default_hooks = dict(visualization=dict(draw=True, interval=1))
--
metainfo = dict(palette='random')
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))
test_dataloader = dict(dataset=dict(metainfo=metainfo))
default_hooks = dict(visualization=dict(draw=True, interval=1))

== labels_of_the_test_kept_back retina open-mmlab/mmdetection#3327
~ EVAL003.*unlabelled.json.*no annotations
test_dataloader = dict(dataset=dict(ann_file='annotations/unlabelled.json'))
test_evaluator = dict(ann_file='DATA/annotations/unlabelled.json')
--
test_dataloader = dict(dataset=dict(ann_file='annotations/unlabelled.json'))
test_evaluator = dict(ann_file='DATA/annotations/unlabelled.json',
                      format_only=True, outfile_prefix='predicted')

== names_of_swins_authors mask open-mmlab/mmdetection#6960
~ CKPT009.*list index out of range.*convert_weights=True
swin = dict(_delete_=True, type='SwinTransformer', embed_dims=8,
            depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], window_size=4,
            init_cfg=dict(type='Pretrained', checkpoint='DATA/swin.pth'))
model = dict(backbone=swin, neck=dict(in_channels=[8, 16, 32, 64]))
--
swin = dict(_delete_=True, type='SwinTransformer', embed_dims=8,
            depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], window_size=4,
            convert_weights=True,
            init_cfg=dict(type='Pretrained', checkpoint='DATA/swin.pth'))
model = dict(backbone=swin, neck=dict(in_channels=[8, 16, 32, 64]))
"""

CASES = parse_cases(_TEXT)
