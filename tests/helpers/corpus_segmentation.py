"""Wrong configs of segmentors, as reported in the hosts' trackers."""

from helpers.corpus_bases import parse_cases

# As in corpus_detection.
_TEXT = r"""
== values_of_imagenet psp open-mmlab/mmsegmentation#216
~ PIPE008.*255
model = dict(data_preprocessor=dict(
    mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]))
--
model = dict(data_preprocessor=dict(
    mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]))

== auxiliary_forgotten psp open-mmlab/mmsegmentation#42
~ auxiliary_head.num_classes
model = dict(auxiliary_head=dict(num_classes=19))
--
model = dict(auxiliary_head=dict(num_classes=7))

== ground_not_counted psp open-mmlab/mmsegmentation#3124
~ num_classes.*6
model = dict(decode_head=dict(num_classes=6),
             auxiliary_head=dict(num_classes=6))
--
model = dict(decode_head=dict(num_classes=7),
             auxiliary_head=dict(num_classes=7))

== softmax_of_one psp open-mmlab/mmsegmentation#286
~ LOSS004
metainfo = dict(classes=('ground', 'shape'), palette=[[0] * 3, [255] * 3])
model = dict(decode_head=dict(num_classes=1),
             auxiliary_head=dict(num_classes=1))
train_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_train')))
val_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_val')))
--
metainfo = dict(classes=('ground', 'shape'), palette=[[0] * 3, [255] * 3])
model = dict(decode_head=dict(num_classes=2),
             auxiliary_head=dict(num_classes=2))
train_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_train')))
val_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_val')))

== one_channel_without_sigmoid segformer open-mmlab/mmsegmentation#2201
~ use_sigmoid
metainfo = dict(classes=('ground', 'shape'), palette=[[0] * 3, [255] * 3])
model = dict(decode_head=dict(num_classes=2, out_channels=1))
train_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_train')))
val_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_val')))
--
metainfo = dict(classes=('ground', 'shape'), palette=[[0] * 3, [255] * 3])
model = dict(decode_head=dict(num_classes=2, out_channels=1, threshold=0.3,
                              loss_decode=dict(use_sigmoid=True)))
train_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_train')))
val_dataloader = dict(dataset=dict(
    metainfo=metainfo, data_prefix=dict(seg_map_path='ann_dir/binary_val')))

== ground_reduced psp open-mmlab/mmsegmentation#1714
~ reduce_zero_label
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='RandomCrop', crop_size=(64, 64), cat_max_ratio=0.75),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(reduce_zero_label=True,
                                     pipeline=pipeline))
--
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=False),
    dict(type='RandomCrop', crop_size=(64, 64), cat_max_ratio=0.75),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(reduce_zero_label=False,
                                     pipeline=pipeline))

== weights_of_others psp open-mmlab/mmsegmentation#3811
~ CFG002
~ class_weight
model = dict(decode_head=dict(loss_decode=dict(class_weight=[0.1, 1.0, 1.0])))
--
model = dict(decode_head=dict(loss_decode=dict(class_weight=[1.0] * 7)))

== weights_with_sigmoid psp open-mmlab/mmsegmentation#2723
~ use_sigmoid
~ class_weight
model = dict(decode_head=dict(loss_decode=dict(
    use_sigmoid=True, class_weight=[1, 1, 1, 1, 1, 2, 1])))
--
model = dict(decode_head=dict(loss_decode=dict(
    use_sigmoid=False, class_weight=[1, 1, 1, 1, 1, 2, 1])))

== weights_of_labelled psp open-mmlab/mmsegmentation#3492
~ LOSS006
model = dict(decode_head=dict(loss_decode=dict(
    class_weight=[1.0] * 6 + [2.0], avg_non_ignore=True)))
--
model = dict(decode_head=dict(loss_decode=dict(class_weight=[1.0] * 6 + [2.0],
                                               avg_non_ignore=False)))

== ignore_index_of_the_loss psp open-mmlab/mmsegmentation#554
~ ignore_index
model = dict(decode_head=dict(loss_decode=dict(ignore_index=6)))
--
model = dict(decode_head=dict(ignore_index=255))

== ignored_in_one_head psp open-mmlab/mmsegmentation#2223
~ CFG001.*ignore_index
~ ignore_index
model = dict(decode_head=dict(ignore_index=0))
--
model = dict(decode_head=dict(ignore_index=255))

== padding_is_a_class psp open-mmlab/mmengine#1187
~ seg_pad_val
model = dict(data_preprocessor=dict(seg_pad_val=0))
--
model = dict(data_preprocessor=dict(seg_pad_val=255))

== no_size psp open-mmlab/mmsegmentation#2938
~ model\.data_preprocessor.*size
~ size.*crop_size
~ size.*model\.data_preprocessor
model = dict(data_preprocessor=dict(size=None))
--
model = dict(data_preprocessor=dict(size=(64, 64)))

== size_of_others psp open-mmlab/mmsegmentation#3610
~ (data_preprocessor.*size|crop_size)
model = dict(data_preprocessor=dict(size=(32, 32)))
--
model = dict(data_preprocessor=dict(size=(64, 64)))

== four_channels psp open-mmlab/mmsegmentation#2351
~ PIPE005.*color_type
model = dict(data_preprocessor=dict(mean=None, std=None),
             backbone=dict(in_channels=4))
--
model = dict(data_preprocessor=dict(mean=None, std=None),
             backbone=dict(in_channels=3))

== twelve_bits psp open-mmlab/mmsegmentation#3567
~ IMG007.*color_type
train_dataloader = dict(dataset=dict(
    img_suffix='.png', data_prefix=dict(img_path='img_dir/deep')))
--
pipeline = [
    dict(type='LoadImageFromFile', color_type='unchanged'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(type='PackSegInputs'),
]
model = dict(data_preprocessor=dict(mean=[2000.0] * 3, std=[1000.0] * 3))
train_dataloader = dict(dataset=dict(
    img_suffix='.png', data_prefix=dict(img_path='img_dir/deep'),
    pipeline=pipeline))

== size_of_a_variable psp open-mmlab/mmsegmentation#3058
~ IGN002.*size
~ IGN001.*crop_size
crop_size = (32, 32)
data_preprocessor = dict(size=crop_size)
--
crop_size = (64, 64)
data_preprocessor = dict(size=crop_size)
model = dict(data_preprocessor=data_preprocessor)

== slide_without_stride psp open-mmlab/mmsegmentation#3011
~ HEAD004.*stride
model = dict(test_cfg=dict(mode='slide', crop_size=(32, 32), slide=(16, 16)))
--
model = dict(test_cfg=dict(mode='slide', crop_size=(32, 32), stride=(16, 16)))

== window_is_a_number psp open-mmlab/mmsegmentation#3092
~ (crop_size|stride).*(tuple|two|pair|\()
model = dict(test_cfg=dict(mode='slide', crop_size=32, stride=16))
--
model = dict(test_cfg=dict(mode='slide', crop_size=(32, 32), stride=(16, 16)))

== slide_of_the_loop psp open-mmlab/mmsegmentation#1958
~ model\.test_cfg
test_cfg = dict(mode='slide', crop_size=(32, 32), stride=(16, 16))
--
model = dict(test_cfg=dict(mode='slide', crop_size=(32, 32), stride=(16, 16)))

== channels_of_the_heads psp open-mmlab/mmsegmentation#2823
~ model\.decode_head
~ decode_head\.in_channels
model = dict(decode_head=dict(in_channels=128))
--
model = dict(decode_head=dict(in_channels=32))

== one_image psp open-mmlab/mmsegmentation#272
~ batch_size.*more than 1 value per channel
train_dataloader = dict(batch_size=1)
--
train_dataloader = dict(batch_size=2)

== one_image_is_left psp open-mmlab/mmsegmentation#401
~ NORM003.*drop_last
train_dataloader = dict(
    batch_size=3, sampler=dict(type='DefaultSampler'),
    dataset=dict(_delete_=True, type='RepeatDataset', times=2,
                 dataset={{_base_.train_dataloader.dataset}}))
--
train_dataloader = dict(
    batch_size=3, sampler=dict(type='DefaultSampler'), drop_last=True,
    dataset=dict(_delete_=True, type='RepeatDataset', times=2,
                 dataset={{_base_.train_dataloader.dataset}}))

== mosaic_without_wrapper psp open-mmlab/mmsegmentation#1677
~ MultiImageMixDataset
~ mix_results
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomMosaic', prob=1.0, img_scale=(64, 64)),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=pipeline))
--
pipeline = [
    dict(type='RandomMosaic', prob=1.0, img_scale=(64, 64)),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(
    _delete_=True, type='MultiImageMixDataset', pipeline=pipeline,
    dataset=dict(
        type='BaseSegDataset', data_root='DATA/',
        metainfo={{_base_.metainfo}},
        data_prefix=dict(img_path='img_dir/train',
                         seg_map_path='ann_dir/train'),
        pipeline=[dict(type='LoadImageFromFile'),
                  dict(type='LoadAnnotations')])))

== no_labels_in_val psp open-mmlab/mmsegmentation#3061
~ val.*(LoadAnnotations|gt_sem_seg)
~ (LoadAnnotations|gt_sem_seg).*val
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='PackSegInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
--
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))

== img_scale psp open-mmlab/mmsegmentation#2967
~ img_scale
~ set 'scale'
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', img_scale=(96, 96), ratio_range=(0.5, 2.0)),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=pipeline))
--
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(96, 96), ratio_range=(0.5, 2.0),
         keep_ratio=True),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=pipeline))

== split psp open-mmlab/mmsegmentation#3693
~ split
train_dataloader = dict(dataset=dict(split='splits/train.txt'))
--
train_dataloader = dict(dataset=dict(ann_file=''))

== prefixes_of_0x psp open-mmlab/mmsegmentation#372
~ img_dir
~ data_prefix
train_dataloader = dict(dataset=dict(data_prefix=dict(
    _delete_=True, img_dir='img_dir/train', ann_dir='ann_dir/train')))
--
train_dataloader = dict(dataset=dict(data_prefix=dict(
    _delete_=True, img_path='img_dir/train', seg_map_path='ann_dir/train')))

== other_suffix psp open-mmlab/mmsegmentation#46
~ PAIR00
~ suffix
train_dataloader = dict(dataset=dict(img_suffix='.png'))
--
train_dataloader = dict(dataset=dict(img_suffix='.jpg'))

== one_channel_backbone psp open-mmlab/mmsegmentation#2330
~ model\.backbone
~ backbone\.in_channels
model = dict(backbone=dict(in_channels=1))
--
model = dict(backbone=dict(in_channels=3))

== quoted_variables psp open-mmlab/mmsegmentation#3652
~ dataset_type
~ train_pipeline
train_dataloader = dict(dataset=dict(type='dataset_type',
                                     pipeline='train_pipeline'))
--
train_dataloader = dict(dataset=dict(
    type='BaseSegDataset', pipeline={{_base_.train_pipeline}}))

== paramwise_in_optimizer psp open-mmlab/mmsegmentation#25
~ optimizer.*paramwise_cfg
optim_wrapper = dict(optimizer=dict(paramwise_cfg=dict(
    custom_keys={'backbone': dict(lr_mult=0.1)})))
--
optim_wrapper = dict(paramwise_cfg=dict(
    custom_keys={'backbone': dict(lr_mult=0.1)}))

== optimizer_of_0x psp open-mmlab/mmsegmentation#2239
~ (IGN001|KEY00).*optimizer
optimizer = dict(paramwise_cfg=dict(custom_keys={'head': dict(lr_mult=10.)}))
--
optim_wrapper = dict(paramwise_cfg=dict(
    custom_keys={'head': dict(lr_mult=10.)}))

== layers_not_given segformer open-mmlab/mmsegmentation#1623
~ num_layers
~ LearningRateDecayOptimizerConstructor
~ paramwise_cfg
optim_wrapper = dict(constructor='LearningRateDecayOptimizerConstructor')
--
optim_wrapper = dict(constructor='DefaultOptimWrapperConstructor')

== epochs_for_iterations psp open-mmlab/mmsegmentation#2908
~ max_epochs.*(_delete_|max_iters|EpochBased)
~ (_delete_|max_iters|EpochBased).*max_epochs
train_cfg = dict(max_epochs=100)
--
train_cfg = dict(max_iters=4000)

== iterations_in_epochs psp open-mmlab/mmsegmentation#3113
~ SCHED004
~ DATA004
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=100,
                 val_interval=10)
param_scheduler = [dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=0,
                        end=20000, by_epoch=True)]
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=10))
--
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=100,
                 val_interval=10)
param_scheduler = [dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=0,
                        end=100, by_epoch=True)]
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=10))
train_dataloader = dict(sampler=dict(type='DefaultSampler'))

== epochs_in_poly psp open-mmlab/mmsegmentation#286
~ SCHED001
~ by_epoch
param_scheduler = [dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=0,
                        end=100, by_epoch=True)]
--
param_scheduler = [dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=0,
                        end=40000, by_epoch=False)]

== cosine_of_others psp InternLM/xtuner#386
~ SCHED00.*T_max
param_scheduler = [dict(type='CosineAnnealingLR', T_max=1000, by_epoch=False)]
--
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False)]

== fp16_of_0x psp open-mmlab/mmsegmentation#3412
~ KEY00.*fp16
fp16 = dict(loss_scale=512.0)
--
optim_wrapper = dict(type='AmpOptimWrapper', loss_scale=512.0)

== loss_is_no_metric psp open-mmlab/mmsegmentation#3063
~ EarlyStoppingHook
~ monitor
custom_hooks = [dict(type='EarlyStoppingHook', monitor='loss', rule='less')]
--
custom_hooks = [dict(type='EarlyStoppingHook', monitor='mIoU',
                     rule='greater')]

== best_without_miou psp open-mmlab/mmsegmentation#2793
~ save_best
val_evaluator = dict(iou_metrics=['mDice'])
default_hooks = dict(checkpoint=dict(save_best='mIoU'))
--
val_evaluator = dict(iou_metrics=['mDice'])
default_hooks = dict(checkpoint=dict(save_best='mDice'))

== no_rule_for_best psp open-mmlab/mmocr#750
~ save_best
~ rule
val_evaluator = dict(iou_metrics=['mFscore'])
default_hooks = dict(checkpoint=dict(save_best='mFscore'))
--
val_evaluator = dict(iou_metrics=['mFscore'])
default_hooks = dict(checkpoint=dict(save_best='mFscore', rule='greater'))

== keeps_all psp open-mmlab/mmengine#1597
~ max_keep_ckpt
default_hooks = dict(checkpoint=dict(max_keep_ckpt=3))
--
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))

== two_weights psp open-mmlab/mmsegmentation#1664
~ pretrained
model = dict(pretrained='open-mmlab://resnet50_v1c', backbone=dict(
    pretrained='open-mmlab://resnet50_v1c'))
--
model = dict(pretrained=None, backbone=dict(pretrained=None))

== joined_palettes psp open-mmlab/mmdetection#10474
~ DATA009.*palette:.*in datasets\[1\].*refuses.*ignore_keys
part = dict(type='BaseSegDataset', data_root='DATA/',
            data_prefix=dict(img_path='img_dir/train',
                             seg_map_path='ann_dir/train'),
            pipeline={{_base_.train_pipeline}})
names = dict(classes=('ground', 'circle', 'square', 'triangle', 'star',
                      'ring', 'cross'))
parts = [dict(part, metainfo={{_base_.metainfo}}), dict(part, metainfo=names)]
train_dataloader = dict(dataset=dict(
    _delete_=True, type='ConcatDataset', datasets=parts))
--
"""

CASES = parse_cases(_TEXT)
