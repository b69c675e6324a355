"""One fault for each rule of the preflight, as the text of a config.

Each config inherits, through a small child that only makes the model narrow,
a real one.
"""

from pathlib import Path
from typing import NamedTuple

import mmdet

import mmext

_HERE = '# here'
_MMDET = Path(mmdet.__file__).parent / '.mim' / 'configs'
_NECK = 'dict(in_channels=[4, 8, 16, 32], out_channels=8)'
_RESNET = 'depth=18, base_channels=4, stem_channels=4, init_cfg=None'
_DETECTOR = mmext.config_path('retinanet/retinanet_r50_fpn_cp_8xb2_1x_coco.py')
_SMALL_DETECTOR = f"""
model = dict(
    backbone=dict({_RESNET}, frozen_stages=-1, norm_eval=False,
                  with_cp=False),
    neck={_NECK},
    bbox_head=dict(in_channels=8, feat_channels=8, stacked_convs=1),
)
"""
# Has a mistake of helpers.preflight_models.Planted.
_PLANTED = """
custom_imports = dict(
    imports=['mmext.models', 'mmext.datasets', 'mmext.engine',
             'helpers.preflight_models'])
model.update(type='mmdet.PlantedDetector')
"""
# Name -> the real config, and what makes its model small. Their preflight has
# no finding.
_BASES = {
    'detector': (_DETECTOR, _SMALL_DETECTOR),
    'planted': (_DETECTOR, _SMALL_DETECTOR + _PLANTED),
    'segmentor': (
        mmext.config_path('pspnet/pspnet_r50_d8_4xb4_160k_ade20k.py'),
        f"""
model = dict(
    backbone=dict({_RESNET}),
    decode_head=dict(in_channels=32, channels=8),
    auxiliary_head=dict(in_channels=16, channels=8),
)
""",
    ),
    'edges': (
        mmext.config_path('pidnet/pidnet_s_camvid.py'),
        """
model = dict(
    backbone=dict(channels=4, ppm_channels=4, num_branch_blocks=1),
    decode_head=dict(in_channels=16, channels=8),
)
""",
    ),
    'masks': (
        _MMDET / 'mask_rcnn' / 'mask-rcnn_r50_fpn_1x_coco.py',
        f"""
model = dict(
    backbone=dict({_RESNET}, frozen_stages=-1, norm_eval=False),
    neck={_NECK},
    rpn_head=dict(in_channels=8, feat_channels=8),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=8),
        bbox_head=dict(in_channels=8, fc_out_channels=8),
        mask_roi_extractor=dict(out_channels=8),
        mask_head=dict(in_channels=8, conv_out_channels=8, num_convs=1),
    ),
)
""",
    ),
    'queries': (
        _MMDET / 'dino' / 'dino-4scale_r50_8xb2-12e_coco.py',
        f"""
model = dict(
    num_queries=20,
    backbone=dict({_RESNET}, frozen_stages=-1, norm_eval=False),
    neck=dict(in_channels=[8, 16, 32]),
    encoder=dict(num_layers=1),
    decoder=dict(num_layers=1),
)
optim_wrapper = dict(constructor='mmext.MergedOptimWrapperConstructor')
""",
    ),
}

# In the header: the rule, the severity of its finding, and as far as they are
# not as in Plant, the other fields. What follows is the text of the config;
# FOLDER is where it is. A comment marks the line where the finding must be.
_TEXT = """
== KEY001 warning key=trian_cfg
trian_cfg = dict(max_epochs=3)  # here

== KEY002 warning key=lr_config
lr_config = dict(policy='step', step=[8])  # here

== KEY003 error key=model.train_cfg.find_unused_parameters
model = dict(train_cfg=dict(find_unused_parameters=True))  # here

== KEY004 info key=epochs_of_mine
epochs_of_mine = 3  # here

== KEY005 error key=randomness.determinstic
randomness = dict(seed=0, determinstic=True)  # here

== KEY006 error key=ops_backend
ops_backend = 'nvcc'  # here

== TYPE001 error key=model.backbone.type
model = dict(backbone=dict(type='ResNett'))  # here

== TYPE002 error key=val_evaluator.type
val_evaluator = dict(type='nowhere.CocoMetric')  # here

== ARG001 error key=val_evaluator.metrics
val_evaluator = dict(metrics='bbox')  # here

== ARG002 warning key=val_evaluator.iou_metric base=segmentor
val_evaluator = dict(iou_metric=['mIoU', 'mDice'])  # here

== BUILD001 error key=default_hooks.logger.interval names=default_hooks.logger
default_hooks = dict(logger=dict(interval=0))  # here

== BUILD002 error key=optim_wrapper.clip_grad.max_nrom names=optim_wrapper
optim_wrapper = dict(clip_grad=dict(max_nrom=1.0))  # here

== CHECK001 warning key=custom_hooks[0] base=planted
from helpers.preflight_models import Untold
hook = dict(type='EMAHook', begin_epoch=Untold(1))
custom_hooks = [hook]  # here

== DATA001 error key=train_dataloader.persistent_workers \
    at=coco_detection.py:persistent_workers=True
train_dataloader = dict(num_workers=0)

== DATA002 error key=train_dataloader.shuffle
train_dataloader = dict(shuffle=True)  # here

== DATA003 warning key=train_dataloader
train_dataloader = dict(sampler=None)  # here

== DATA004 error key=train_dataloader.sampler.type
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))  # here

== DATA005 error key=train_dataloader.batchsize
train_dataloader = dict(batchsize=2)  # here

== DATA007 error key=train_dataloader.dataset.data_prefix.img_path
prefix = dict(_delete_=True, img_path='train2017/')  # here
train_dataloader = dict(dataset=dict(data_prefix=prefix))

== DATA008 warning key=train_dataloader.dataset.filter_cfg.filter_empty_gts
cfg = dict(filter_empty_gts=True)  # here
train_dataloader = dict(dataset=dict(filter_cfg=cfg))

== DATA009 error key=train_dataloader.dataset.datasets names=palette
part = dict(type='CocoDataset', ann_file='a.json',
            pipeline={{_base_.train_pipeline}})
black = dict(part, metainfo=dict(palette=[(0, 0, 0)] * 80))
joined = dict(_delete_=True, type='mmengine.ConcatDataset',
              datasets=[part, black])  # here
train_dataloader = dict(dataset=joined)

== DATA010 info key=train_dataloader.dataset.serialize_data
with open('FOLDER/large.json', 'wb') as file:
    file.truncate(2**28)
file = dict(data_root='', ann_file='FOLDER/large.json')
train_dataloader = dict(dataset=dict(
    **file, serialize_data=False))  # here

== DATA006 info key=train_dataloader.sampler.shuffle
train_dataloader = dict(sampler=dict(shuffle=False))  # here

== EVAL001 error key=val_evaluator.ann_file
val_evaluator = dict(ann_file='data/other.json')  # here

== EVAL002 error key=default_hooks.checkpoint.save_best
default_hooks = dict(checkpoint=dict(save_best='bbox_mAP'))  # here

== EVAL003 error key=val_dataloader.dataset.pipeline base=edges
val_dataloader = dict(dataset=dict(pipeline=[  # here
    dict(type='LoadImageFromFile'), dict(type='PackSegInputs')]))

== EVAL004 error key=default_hooks.checkpoint.rule
default_hooks = dict(checkpoint=dict(
    save_best='coco/bbox_mAP', rule='less'))  # here

== EVAL005 warning key=custom_hooks[0].monitor
val_dataloader = val_cfg = val_evaluator = None
custom_hooks = [dict(type='EarlyStoppingHook', min_delta=0.001,
                     monitor='coco/bbox_mAP')]  # here

== EVAL006 warning key=default_hooks.stop
stop = dict(type='EarlyStoppingHook', monitor='coco/bbox_mAP')
default_hooks = dict(stop=stop)  # here

== CKPT001 error key=load_from
load_from = 'FOLDER/none.pth'  # here

== CKPT002 error key=load_from
load_from = 'FOLDER/small.py'  # here

== CKPT003 error key=load_from
load_from = 'htps://a.org/a.pth'  # here

== CKPT004 error key=model.backbone.init_cfg.checkpoint
init = dict(_delete_=True, type='Pretrained',
            checkpoint=None)  # here
model = dict(backbone=dict(init_cfg=init))

== CKPT005 warning key=resume
resume = 'last.pth'  # here

== CKPT006 warning key=model.backbone.init_cfg.checkpoint
init = dict(_delete_=True, type='Pretrained',
            checkpoint='torchvision://resnet18')  # here
model = dict(backbone=dict(init_cfg=init))

== CKPT007 info key=model.backbone.init_cfg
init = dict(_delete_=True, type='Pretrained',
            checkpoint='https://a.org/a.pth')
load_from = 'https://a.org/b.pth'
model = dict(backbone=dict(init_cfg=init))  # here

== CKPT009 error key=load_from
import torch
load_from = 'FOLDER/weights.pth'  # here
torch.save({'a.weight': torch.zeros(3)}, load_from)
del torch

== CKPT008 error key=load_from
load_from = 'FOLDER/a.pth'  # here
open(load_from, 'wb').write(bytes.fromhex('8002637379730a657869740a2e'))

== CKPT010 error key=model.backbone.frozen_stages also=OPT002
model = dict(backbone=dict(frozen_stages=1))  # here

== CKPT011 warning key=model.backbone.init_cfg.checkpoint
init = dict(_delete_=True, type='Pretrained',
            checkpoint='https://a.org/resnet50-0676ba61.pth')  # here
model = dict(backbone=dict(init_cfg=init))

== ENV001 error environ=RANK=0

== ENV002 error environ=MASTER_PORT=auto

== ENV003 warning environ=CUDA_VISIBLE_DEVICES=0,0

== ENV004 warning environ=TORCH_DISTRIBUTED_DEBUG=DETAIL
env_cfg = dict(dist_cfg=dict(backend='gloo'))

== ENV006 error key=work_dir
work_dir = 'FOLDER/small.py/a'  # here

== HEAD001 error key=model.bbox_head.num_classes
model = dict(bbox_head=dict(num_classes=79))  # here

== HEAD002 error key=model.bbox_head.num_classes
model = dict(bbox_head=dict(num_classes=81))  # here

== HEAD003 error key=val_dataloader.dataset
from mmdet.datasets import CocoDataset
classes = CocoDataset.METAINFO['classes'][::-1]
val_dataloader = dict(dataset=dict(metainfo=dict(classes=classes)))  # here

== HEAD004 error key=model.test_cfg.mode base=segmentor
model = dict(test_cfg=dict(mode='slide', crop_size=(512, 512)))  # here

== HEAD005 error key=train_dataloader.dataset.metainfo.classes
train_dataloader = dict(dataset=dict(metainfo=dict(classes=('cat'))))  # here

== HEAD006 error key=train_dataloader.dataset.metainfo.CLASSES
model = dict(bbox_head=dict(num_classes=2))
metainfo = dict(CLASSES=('cat', 'dog'))  # here
train_dataloader = dict(dataset=dict(metainfo=metainfo))
val_dataloader = dict(dataset=dict(metainfo=metainfo))

== HEAD007 error key=model.test_cfg.max_per_img base=queries
model = dict(test_cfg=dict(max_per_img=1601))  # here

== HEAD008 warning key=train_dataloader.dataset.metainfo
model = dict(bbox_head=dict(num_classes=2))
info = dict(classes=('cat', 'dog'), palette=[(9, 0, 0)])
train_dataloader = dict(dataset=dict(metainfo=info))  # here
val_dataloader = dict(dataset=dict(metainfo=info))
test_dataloader = dict(dataset=dict(metainfo=info))

== HEAD009 warning key=model.test_cfg.max_per_img argv=--batches=real
from mmext.datasets import SHAPE_CLASSES, ShapesSpec, write_shapes_dataset
from pathlib import Path
root = 'FOLDER/data/'
if not Path(root).exists():
    spec = ShapesSpec(image_size=(64, 64), min_objects=2, empty_fraction=0)
    write_shapes_dataset(root, spec, num_train=2, num_val=2)
    del spec
model = dict(bbox_head=dict(num_classes=6),
             test_cfg=dict(max_per_img=1))  # here
metainfo = dict(classes=SHAPE_CLASSES)
del SHAPE_CLASSES, ShapesSpec, write_shapes_dataset, Path
train_dataloader = dict(dataset=dict(
    data_root=root, metainfo=metainfo, ann_file='annotations/train.json',
    data_prefix=dict(img='img_dir/train/')))
val_dataloader = dict(dataset=dict(
    data_root=root, metainfo=metainfo, ann_file='annotations/val.json',
    data_prefix=dict(img='img_dir/val/')))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=root + 'annotations/val.json')
test_evaluator = val_evaluator

== HOOK001 error key=custom_hooks
custom_hooks = dict(type='EMAHook')  # here

== HOOK002 warning key=custom_hooks[0]
custom_hooks = [dict(type='LoggerHook')]  # here

== HOOK003 error key=custom_hooks[0].begin_epoch
custom_hooks = [dict(type='EMAHook', begin_epoch=13)]  # here

== IGN001 warning key=train_scales
train_scales = [(64, 64)]  # here

== IGN002 warning key=data_preprocessor.pad_value
data_preprocessor = dict(pad_value=9)  # here

== IGN003 info key=model_wrapper_cfg
runner_type = 'Runner'
model_wrapper_cfg = dict(type='MMDistributedDataParallel')  # here

== IGN004 warning key=train_pipeline
train_pipeline = [dict(type='LoadImageFromFile')]  # here

== IGN005 warning key=optim_wrapper.paramwise_cfg.norm_decay_mul
optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mul=0))  # here

== IGN006 warning key=custom_imports.imports
custom_imports = dict(imports=['mmext.models'])  # here

== IGN007 warning key=train_cfg
train_cfg = dict(max_epochs=3)
train_cfg = dict()  # here

== IGN008 error key=model.type base=planted names=train_step
model = dict(type='mmdet.OwnStepDetector')  # here

== LOOP001 error key=val_dataloader at=coco_detection.py:val_dataloader
val_evaluator = None

== LOOP002 warning key=train_cfg.val_begin
train_cfg = dict(val_begin=13)  # here

== LOOP003 info key=train_cfg.val_interval
train_cfg = dict(val_interval=13)  # here

== LOOP004 warning key=default_hooks.checkpoint base=segmentor
default_hooks = dict(checkpoint=dict(by_epoch=True))  # here

== LOOP005 warning key=custom_hooks[0].switch_epoch
hook = dict(type='PipelineSwitchHook', switch_pipeline=[],
            switch_epoch=12)  # here
custom_hooks = [hook]

== LOOP006 info key=auto_scale_lr.base_batch_size \
    at=sgd_1x.py:base_batch_size=16
train_dataloader = dict(batch_size=4)

== LOOP007 error key=auto_scale_lr
auto_scale_lr = dict(_delete_=True, enable=True)  # here

== LOSS001 info key=model.bbox_head.loss_bbox.loss_weight also=STEP007
model = dict(bbox_head=dict(loss_bbox=dict(loss_weight=0.0)))  # here

== LOSS002 error key=model.auxiliary_head.loss_decode.loss_name \
    base=segmentor also=DDP001,STEP005
loss = dict(_delete_=True, type='mmseg.CrossEntropyLoss',
            loss_name='ce')  # here
model = dict(auxiliary_head=dict(loss_decode=loss))

== LOSS003 warning key=model.bbox_head.loss_bbox.loss_weight
model = dict(bbox_head=dict(loss_bbox=dict(loss_weight=-1.0)))  # here

== LOSS004 error key=model.auxiliary_head.num_classes base=segmentor \
    also=HEAD001,STEP001
loss = dict(type='mmseg.CrossEntropyLoss')
head = dict(loss_decode=dict(_delete_=True, **loss),
            num_classes=1)  # here
model = dict(auxiliary_head=head)

== LOSS005 error key=model.auxiliary_head.loss_decode.class_weight \
    base=segmentor also=STEP001
loss = dict(type='mmseg.CrossEntropyLoss', use_sigmoid=True)
head = dict(loss_decode=dict(_delete_=True, **loss,
                             class_weight=[1.0] * 150))  # here
model = dict(auxiliary_head=head)

== LOSS006 error key=model.auxiliary_head.loss_decode.avg_non_ignore \
    base=segmentor also=STEP001
loss = dict(type='mmseg.CrossEntropyLoss', class_weight=[1.0] * 150,
            avg_non_ignore=True)  # here
model = dict(auxiliary_head=dict(loss_decode=dict(_delete_=True, **loss)))

== LOSS007 error key=model.bbox_head.loss_bbox.type
loss = dict(_delete_=True, type='mmdet.GIoULoss')  # here
model = dict(bbox_head=dict(loss_bbox=loss))

== PIPE001 error key=train_dataloader.dataset.pipeline base=edges also=STEP001
train_dataloader = dict(dataset=dict(pipeline=[  # here
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')]))

== PIPE002 error key=train_dataloader.dataset.pipeline[2] base=edges
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
    dict(type='GenerateEdge', ignore_index=11),  # here
    dict(type='RandomCrop', crop_size=(320, 320)),
    dict(type='PackSegInputs')]))

== PIPE003 error key=train_dataloader.dataset.pipeline[1] base=masks \
    also=STEP001
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),  # here
    dict(type='PackDetInputs')]))

== PIPE004 error key=train_dataloader.dataset.pipeline[2]
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Mosaic', img_scale=(64, 64)),  # here
    dict(type='PackDetInputs')]))

== PIPE009 error key=val_dataloader.dataset.pipeline
val_dataloader = dict(dataset=dict(pipeline=[  # here
    dict(type='Resize', scale=(1333, 800)), dict(type='PackDetInputs')]))

== PIPE005 error key=train_dataloader.dataset.pipeline[0] base=segmentor \
    at=ade20k_semantic.py:LoadImageFromFile
model = dict(backbone=dict(in_channels=4),
             data_preprocessor=dict(mean=[0.0], std=[255.0]))

== PIPE006 warning key=model.data_preprocessor.size base=segmentor
model = dict(data_preprocessor=dict(size=(256, 512)))  # here

== PIPE007 error key=val_dataloader.dataset.pipeline base=queries \
    also=PIPE010
val_dataloader = dict(dataset=dict(pipeline=[  # here
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(24, 24), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs')]))

== PIPE008 warning key=model.data_preprocessor.mean
mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
model = dict(data_preprocessor=dict(mean=mean, std=std))  # here

== PIPE010 warning key=val_dataloader.dataset.pipeline
val_dataloader = dict(dataset=dict(pipeline=[  # here
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(320, 200), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs')]))

== SCHED001 error key=param_scheduler[0].by_epoch base=segmentor
param_scheduler = [dict(type='PolyLR', by_epoch=True)]  # here

== SCHED002 error key=param_scheduler[0].begin
param_scheduler = [dict(type='ExponentialLR', gamma=0.9, begin=12)]  # here

== SCHED003 warning key=param_scheduler[0].milestones
param_scheduler = [dict(type='MultiStepLR', milestones=[16])]  # here

== SCHED004 warning key=param_scheduler[0].end
param_scheduler = [dict(type='PolyLR', end=24)]  # here

== SCHED005 warning key=param_scheduler[0].T_max
param_scheduler = [dict(type='CosineAnnealingLR', T_max=6)]  # here

== SCHED006 warning key=param_scheduler[0].end
param_scheduler = [dict(type='LinearLR', end=12)]  # here

== SCHED007 warning key=param_scheduler[1]
param_scheduler = [dict(type='StepLR', step_size=3),
                   dict(type='PolyLR', begin=6, end=12)]  # here

== SCHED008 error key=param_scheduler[0].end
param_scheduler = [dict(type='LinearLR', start_factor=0.01, end=1)]  # here

== CFG001 error key=val_evaluator.ignore_index base=edges
val_evaluator = dict(ignore_index=255)  # here

== CFG002 error key=model.auxiliary_head.loss_decode base=segmentor \
    also=STEP001
loss = dict(class_weight=[1.0] * 9)
model = dict(auxiliary_head=dict(loss_decode=loss))  # here

== CFG004 error key=model.data_preprocessor.seg_pad_val base=segmentor
model = dict(data_preprocessor=dict(seg_pad_val=0))  # here

== CFG005 warning key=ignore_index base=segmentor
model = dict(decode_head=dict(ignore_index=3),
             auxiliary_head=dict(ignore_index=3),
             data_preprocessor=dict(seg_pad_val=3))
val_evaluator = dict(ignore_index=3)
test_evaluator = dict(ignore_index=3)

== CFG009 error key=train_dataloader.dataset base=segmentor
train_dataloader = dict(dataset=dict(  # here
    pipeline=[dict(type='LoadImageFromFile'),
              dict(type='LoadAnnotations', reduce_zero_label=False),
              dict(type='PackSegInputs')]))

== CFG010 warning key=metainfo.classes
classes = ('traffic_light', 'b', 'Traffic light')
model = dict(bbox_head=dict(num_classes=3))
train_dataloader = dict(dataset=dict(metainfo=dict(classes=classes)))
val_dataloader = dict(dataset=dict(metainfo=dict(classes=classes)))
test_dataloader = dict(dataset=dict(metainfo=dict(classes=classes)))

== CFG011 error key=model.auxiliary_head.loss_decode base=segmentor
loss = dict(_delete_=True, type='mmseg.CrossEntropyLoss',
            class_weight=[1.0] * 149 + [-1.0])
model = dict(auxiliary_head=dict(loss_decode=loss))  # here

== CFG007 error key=metainfo.classes
classes = ('a', 'b', 'a')
model = dict(bbox_head=dict(num_classes=3))
train_dataloader = dict(dataset=dict(metainfo=dict(classes=classes)))
val_dataloader = dict(dataset=dict(metainfo=dict(classes=classes)))
test_dataloader = dict(dataset=dict(metainfo=dict(classes=classes)))

== DDP001 error base=planted names=planted.extra
model = dict(mistake='extra')

== DDP002 error base=planted names=planted.block
model = dict(mistake='reentrant')
find_unused_parameters = True

== DDP003 error base=planted names=planted.block also=OPT002
model = dict(mistake='reentrant silent')

== DDP004 error base=planted names=planted.block also=OPT002
model = dict(mistake='frozen stem reentrant')

== DDP005 warning key=find_unused_parameters
find_unused_parameters = True  # here

== DDP006 warning key=model_wrapper_cfg.static_graph
model_wrapper_cfg = dict(static_graph=True)  # here

== DDP007 error base=planted names=planted.extra argv=--batches=normal,empty
model = dict(mistake='extra by kind')

== DDP008 error key=model_wrapper_cfg.static_graph base=planted \
    names=planted.extra also=DDP001,STEP005
model = dict(mistake='extra logged')
model_wrapper_cfg = dict(static_graph=True)  # here

== DDP009 error base=planted names=planted.extra
model = dict(mistake='extra outside')
find_unused_parameters = True

== DDP010 error base=planted names=planted.extra also=OPT002
model = dict(mistake='extra unfrozen')

== DDP011 warning base=planted
model = dict(mistake='container')
model_wrapper_cfg = dict(static_graph=True)

== DDP012 error base=planted names=planted.lazy
model = dict(mistake='lazy')

== DDP013 error base=planted names=planted.table
model = dict(mistake='sparse tied')

== DDP014 error key=custom_hooks[1] base=planted names=planted.stem \
    also=OPT002
model = dict(mistake='frozen stem')
custom_hooks = [dict(type='EMAHook'), dict(  # here
    type='mmengine.TrainableFrom', part='planted.stem', train=True, epoch=6)]

== STEP001 error base=planted names=planted argv=--batches=normal,empty
model = dict(mistake='crash')

== STEP002 warning base=planted names=planted.kept
model = dict(mistake='memory that grows')

== STEP003 error base=planted
model = dict(mistake='nan')

== STEP004 error base=planted names=planted.
model = dict(mistake='nan gradient')

== STEP005 warning base=planted names=planted_norm also=DDP001
model = dict(mistake='extra logged')

== STEP006 warning base=planted names=planted_loss_n
model = dict(mistake='no gradient')

== STEP007 warning base=planted names=planted.extra
model = dict(mistake='extra weight 0')

== STEP008 error base=planted also=STEP002
model = dict(mistake='memory')

== STEP009 warning base=planted
model = dict(mistake='outside')

== STEP010 error key=model.bbox_head.anchor_generator.strides \
    names=bbox_head
model = dict(bbox_head=dict(anchor_generator=dict(
    strides=[4, 8, 16, 32, 64])))  # here

== GPU001 error base=planted argv=--rehearse
model = dict(mistake='on the host')

== GPU002 info argv=--rehearse also=GPU003
env_cfg = dict(cudnn_benchmark=False)

== GPU003 error argv=--gpu-memory=0.001 also=GPU002
env_cfg = dict(cudnn_benchmark=False)

== GPU004 error base=planted names=planted argv=--rehearse also=GPU002,GPU003
model = dict(mistake='eps of float32')
optim_wrapper = dict(type='AmpOptimWrapper')

== NORM001 warning base=planted names=planted.norm
model = dict(mistake='norm twice')

== NORM003 error key=train_dataloader.batch_size base=segmentor \
    names=decode_head.psp_modules. also=LOOP006
norm_cfg = dict(type='BN')
model = dict(decode_head=dict(norm_cfg=norm_cfg))
train_dataloader = dict(batch_size=1)  # here

== WORLD001 error base=planted also=LOOP006 argv=--world=2
model = dict(mistake='extra alone')

== OPT001 error base=planted names=neck
optim_wrapper = dict(constructor='BackboneOnlyConstructor')

== OPT002 info base=planted names=planted.stem
model = dict(mistake='frozen stem')

== OPT003 warning key=optim_wrapper.paramwise_cfg.custom_keys
keys = {'backbone': dict(lr_mult=0.0)}
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=keys))  # here

== OPT004 warning key=optim_wrapper.paramwise_cfg.custom_keys.bakbone
keys = {'bakbone': dict(lr_mult=0.1)}  # here
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=keys))

== OPT005 info key=optim_wrapper.paramwise_cfg.custom_keys.backbon
keys = {'backbone': dict(lr_mult=0.1),
        'backbon': dict(lr_mult=0.2)}  # here
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=keys))

== OPT006 info key=optim_wrapper.paramwise_cfg
keys = {'backbone': dict(lr_mult=0.1)}
optim_wrapper = dict(
    constructor='DefaultOptimWrapperConstructor',
    paramwise_cfg=dict(custom_keys=keys),  # here
)
"""


class Plant(NamedTuple):
    """A fault, and what the tool must say of it.

    Attributes:
        rule: That must be found.
        severity: Of the finding; the tool is run with this ``--fail-on``.
        text: Of the config.
        key: Of the finding; empty for none.
        names: How the first of the finding's names begins.
        base: Name of what the config inherits.
        at: File and text of the line of the finding, where it is in a base.
        also: Other rules that the same fault breaks.
        environ: A variable of the environment, and its value.
        argv: A further argument of the tool.
    """

    rule: str
    severity: str
    text: str
    key: str = ''
    names: str = ''
    base: str = 'detector'
    at: str = ''
    also: str = ''
    environ: str = ''
    argv: str = ''

    @property
    def line(self) -> tuple[str, str]:
        """Name of the file, and a part of the line; empty for none."""
        if _HERE in self.text:
            return 'plant.py', _HERE
        file, _, text = self.at.partition(':')
        return file, text


def _parse(text: str) -> tuple[Plant, ...]:
    plants = []
    for part in text.split('\n== ')[1:]:
        header, _, lines = part.partition('\n')
        rule, severity, *fields = header.split()
        named = dict(field.split('=', 1) for field in fields)
        plants.append(Plant(rule, severity, lines.strip(), **named))
    return tuple(plants)


PLANTS = _parse(_TEXT)


def write_plant(plant: Plant, folder: Path) -> Path:
    """Write the config of a plant, and the one that it inherits."""
    real, small = _BASES[plant.base]
    (folder / 'small.py').write_text(f'_base_ = {str(real)!r}\n{small}')
    path = folder / 'plant.py'
    text = plant.text.replace('FOLDER', str(folder))
    path.write_text(f"_base_ = 'small.py'\n{text}\n")
    return path
