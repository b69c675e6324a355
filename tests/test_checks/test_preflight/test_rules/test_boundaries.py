"""What is near the fault of a plant: what is none, and what is milder."""

import json
import os
import socket

import numpy as np
import pytest
import torch
from helpers.lint_findings import changed, lint
from mmcv.transforms import Normalize
from mmdet.models import DetDataPreprocessor
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.hooks import EarlyStoppingHook, EMAHook
from mmengine.optim import ReduceOnPlateauLR
from mmengine.registry import DATASETS, HOOKS

import mmext

AP = 'coco/bbox_mAP'
EMA = {'type': 'EMAHook'}
NO_VAL = dict.fromkeys(('val_dataloader', 'val_cfg', 'val_evaluator'))
ITERS = {'type': 'IterBasedTrainLoop', 'max_iters': 100, 'val_interval': 10}
LOADER = 'train_dataloader'
DATA = f'{LOADER}.dataset'
ENDLESS = {'type': 'InfiniteSampler', 'shuffle': True}
SEG_DATA = 'mmseg.BaseSegDataset'


@DATASETS.register_module(force=True)
class ComputedPrefix(BaseDataset):
    def load_data_list(self):
        return [self.data_prefix[key] for key in ('left', 'right')]


@HOOKS.register_module(force=True)
class LateAverage(EMAHook):
    """Begins after the training, if nothing else is said."""

    def __init__(self, begin_epoch=13, **kwargs):
        super().__init__(begin_epoch=begin_epoch, **kwargs)


@HOOKS.register_module(force=True)
class UncheckedAverage(LateAverage):
    def before_train(self, runner):
        pass


def prefix(kind='CocoDataset', **keys):
    return {f'{DATA}.type': kind, f'{DATA}.data_prefix': keys}


def filters(**keys):
    return {f'{DATA}.filter_cfg': keys}


def hook(**settings):
    return {'custom_hooks': [settings]}


def schedule(**settings):
    return {'param_scheduler': [settings]}


def best(name, **evaluator):
    return {
        'default_hooks.checkpoint.save_best': name,
        'val_evaluator': {'type': 'CocoMetric', **evaluator},
    }


def stopping(**settings):
    own = {'type': 'EarlyStoppingHook', 'monitor': AP, **settings}
    return {'default_hooks.early_stopping': own}


def checkpoints(train_cfg=None, **settings):
    changes = {'train_cfg': train_cfg} if train_cfg else {}
    own = {'type': 'CheckpointHook', **settings}
    return {**changes, 'default_hooks.checkpoint': own}


def scale(**setting):
    return {'auto_scale_lr': setting}


def head(num_classes=3, **loss):
    settings = {'type': 'mmseg.CrossEntropyLoss', **loss}
    own = {'type': 'mmseg.FCNHead', 'num_classes': num_classes}
    return {'model.decode_head': {**own, 'loss_decode': settings}}


def masks(**loading):
    head = {'type': 'StandardRoIHead', 'mask_head': {'type': 'FCNMaskHead'}}
    step = {'type': 'LoadAnnotations', 'with_bbox': True, **loading}
    return {'model.roi_head': head, f'{DATA}.pipeline.1': step}


# Letters of rules, a change of the clean config, and the severities of what
# these rules find.
ROWS = [
    ('DATA007', prefix(img='a', seg='b'), ()),
    ('DATA007', prefix('Mine', anything='a'), ()),
    ('DATA007', prefix('ComputedPrefix', left='a'), ()),
    # Nothing is missing, and nothing can be meant.
    ('DATA007', prefix(img='a', sub_data_root='b'), ('warning',)),
    ('DATA008', filters(filter_empty_gt=1, min_size=2), ()),
    ('DATA008', filters(mine=1), ('info',)),
    (
        'DATA001',
        {f'{LOADER}.num_workers': 0, 'runner_type': 'FlexibleRunner'},
        (),
    ),
    (
        'DATA001',
        {
            'val_dataloader.num_workers': 0,
            'val_dataloader.prefetch_factor': 2,
        },
        ('error',),
    ),
    (
        'DATA002',
        {
            f'{LOADER}.batch_sampler': {'type': 'AspectRatioBatchSampler'},
            f'{LOADER}.drop_last': True,
        },
        ('error',),
    ),
    # It lacks; as None it may be of a stream.
    ('DATA003', {f'{LOADER}.sampler': None}, ('error',)),
    ('DATA004', {f'{LOADER}.sampler': ENDLESS, 'train_cfg': ITERS}, ()),
    ('DATA005', {f'{LOADER}.num_batch_per_epoch': 3}, ()),
    ('DATA006', {'val_dataloader.sampler.shuffle': True}, ('info',)),
    ('EVAL002', best('auto'), ()),
    ('EVAL002', best('coco/bbox_mAP'), ()),
    ('EVAL002', best('coco/cat_precision', classwise=True), ()),
    ('EVAL002', best('mine/bbox_mAP_s', prefix='mine'), ()),
    ('EVAL002', best('coco/AR@100', metric='proposal'), ()),
    ('EVAL002', best('mIoU', type='mmseg.IoUMetric'), ()),
    (
        'EVAL002',
        best('mDice', type='mmseg.IoUMetric', iou_metrics=['mDice']),
        (),
    ),
    ('EVAL002', best('pascal_voc/AP50', type='VOCMetric'), ()),
    ('EVAL002', best('lvis/whatever', type='LVISMetric'), ()),
    ('EVAL002', best('whatever', type='Mine'), ()),
    ('EVAL002', best(['coco/bbox_mAP', 'bbox_mAP_50']), ('error',)),
    ('EVAL002', best('mAP', type='VOCMetric'), ('error',)),
    ('EVAL002', best('mDice', type='mmseg.IoUMetric'), ('error',)),
    ('EVAL002', best('bbox_AP', type='LVISMetric'), ('error',)),
    (
        'EVAL002',
        schedule(type='ReduceOnPlateauLR', monitor='loss'),
        ('error',),
    ),
    # It watches 'loss', if nothing is said.
    ('EVAL002', schedule(type='ReduceOnPlateauLR'), ('error',)),
    ('EVAL004', schedule(type='ReduceOnPlateauLR', monitor='loss'), ()),
    ('EVAL004', schedule(type='ReduceOnPlateauLR', monitor=AP), ('error',)),
    (
        'EVAL004',
        schedule(type='ReduceOnPlateauLR', monitor=AP, rule='greater'),
        (),
    ),
    ('EVAL004', checkpoints(save_best=AP), ()),
    ('EVAL004', checkpoints(save_best=AP, rule='less'), ('error',)),
    ('EVAL004', checkpoints(save_best='loss', rule='greater'), ('error',)),
    ('EVAL004', checkpoints(save_best='mine', rule='less'), ()),
    ('EVAL004', checkpoints(save_best='depth/rmse', rule='less'), ()),
    # It is not known which of both is meant.
    ('EVAL004', checkpoints(save_best='map_loss', rule='greater'), ()),
    ('EVAL004', stopping(rule='less'), ('error',)),
    ('EVAL005', checkpoints(save_best=AP), ()),
    ('EVAL005', {**checkpoints(save_best=AP), **NO_VAL}, ('warning',)),
    ('EVAL005', {**checkpoints(), **NO_VAL}, ()),
    ('EVAL005', {**stopping(), **NO_VAL}, ('warning',)),
    (
        'EVAL005',
        {**schedule(type='ReduceOnPlateauLR'), **NO_VAL},
        ('warning',),
    ),
    ('EVAL006', stopping(), ('warning',)),
    ('EVAL006', stopping(min_delta=0.005), ()),
    # From 0 to 100.
    ('EVAL006', stopping(monitor='mIoU'), ()),
    ('HOOK001', {'default_hooks': [EMA]}, ('error',)),
    ('HOOK001', {'default_hooks.logger': 'LoggerHook'}, ('error',)),
    ('HOOK001', {'custom_hooks': [{'interval': 3}, EMA]}, ('error',)),
    ('HOOK001', {'custom_hooks': [EMA, 'EMAHook']}, ('error',)),
    ('HOOK', {'custom_hooks': [EMA]}, ()),
    ('HOOK002', {'custom_hooks': [{'type': 'MyHook'}] * 2}, ()),
    ('HOOK003', hook(**EMA, begin_epoch=12), ()),
    ('HOOK003', hook(**EMA, begin_iter=9000), ()),
    ('HOOK003', hook(**EMA, begin_epoch=3, begin_iter=5), ('error',)),
    ('HOOK003', {'default_hooks.ema': {**EMA, 'begin_epoch': 13}}, ('error',)),
    ('HOOK003', hook(type='LateAverage'), ('error',)),
    ('HOOK003', hook(type='LateAverage', begin_epoch=12), ()),
    ('HOOK003', hook(type='UncheckedAverage'), ()),
    (
        'HOOK003',
        {**hook(**EMA, begin_epoch=2), 'train_cfg': ITERS},
        ('error',),
    ),
    ('HOOK003', {**hook(**EMA, begin_iter=9), 'train_cfg': ITERS}, ()),
    ('IGN005', {'optim_wrapper.paramwise_cfg': {'mine': 1}}, ('warning',)),
    (
        'IGN005',
        {'optim_wrapper.paramwise_cfg': {'mine': 1}, 'own_keys': ['mine']},
        (),
    ),
    # Parts of configs, for others to inherit.
    ('LOOP001', dict.fromkeys(('model', 'val_cfg')), ()),
    (
        'LOOP001',
        dict.fromkeys((LOADER, 'val_dataloader', 'val_cfg')),
        (),
    ),
    ('LOOP002', {'train_cfg.val_begin': 12}, ()),
    ('LOOP003', {'train_cfg.val_interval': 12}, ()),
    ('LOOP004', checkpoints(interval=12), ()),
    ('LOOP004', checkpoints(interval=13), ('info',)),
    ('LOOP004', checkpoints(ITERS, interval=1), ('warning',)),
    ('LOOP004', checkpoints(ITERS, interval=10, by_epoch=False), ()),
    (
        'LOOP005',
        hook(type='mmdet.YOLOXModeSwitchHook', num_last_epochs=15),
        ('warning',),
    ),
    (
        'LOOP005',
        hook(type='YOLOXModeSwitchHook', num_last_epochs=0),
        ('warning',),
    ),
    ('LOOP005', hook(type='PipelineSwitchHook', switch_epoch=11), ()),
    ('LOOP006', scale(base_batch_size=16, enable=False), ()),
    ('LOOP007', scale(enable=False), ()),
    ('LOSS', head(loss_weight=0.4, loss_name='loss_ce'), ()),
    ('LOSS', head(loss_name='aux_loss'), ()),
    ('LOSS004', head(1, use_sigmoid=True), ()),
    ('PIPE', masks(with_mask=True), ()),
    # Of one stage: masks may be learned from boxes.
    ('PIPE', {'model.mask_head': {'type': 'FCNMaskHead'}}, ()),
    ('SCHED002', schedule(type='ExponentialLR', gamma=0.9, begin=11), ()),
    (
        'SCHED',
        schedule(type='MultiStepLR', milestones=[8], end=8),
        ('warning',),
    ),
    ('SCHED', schedule(type='MultiStepLR', milestones=[8, 16]), ('info',)),
    ('SCHED', schedule(type='PolyLR', end=9), ('warning',)),
    ('SCHED', schedule(type='PolyLR', end=10), ('info',)),
    ('SCHED', schedule(type='CosineAnnealingLR', T_max=12, end=12), ()),
    # Without an end it lasts as long as the training.
    ('SCHED', schedule(type='CosineAnnealingLR', T_max=12), ()),
    ('SCHED', schedule(type='CosineAnnealingLR', T_max=24), ('info',)),
    ('SCHED', schedule(type='LinearLR'), ('warning',)),
    ('SCHED', schedule(type='LinearLR', end=11), ()),
    (
        'SCHED',
        schedule(type='LinearLR', start_factor=1, end_factor=0, end=12),
        (),
    ),
    (
        'SCHED',
        schedule(type='LinearLR', end=1, convert_to_iter_based=True),
        (),
    ),
    ('SCHED', schedule(type='LinearLR', by_epoch=False, end=1), ('error',)),
    ('SCHED', schedule(type='LinearLR', by_epoch=False, end=2), ()),
    ('SCHED', schedule(type='ConstantLR', factor=1, end=1), ()),
    ('SCHED', {'param_scheduler': {'type': 'ConstantLR'}}, ()),
    (
        'SCHED',
        {
            'param_scheduler': [
                dict(type='CosineAnnealingLR', T_max=6, end=6),
                dict(type='ConstantLR', begin=6, end=12),
            ]
        },
        (),
    ),
    (
        'SCHED007',
        {
            'param_scheduler': [
                dict(type='StepLR', step_size=3, end=6),
                dict(type='PolyLR', begin=6, end=12),
                dict(type='PolyMomentum', begin=3, end=12),
            ]
        },
        (),
    ),
]


@pytest.mark.parametrize(('rules', 'changes', 'severities'), ROWS)
def test_near_a_fault(rules, changes, severities):
    findings = lint(changes, rules)
    assert (
        tuple(finding.severity.name.lower() for finding in findings)
        == severities
    )


@pytest.mark.parametrize(
    ('rule', 'changes', 'options'),
    [
        # The only one that can be meant, if it is free.
        (
            'DATA007',
            prefix(SEG_DATA, ann_dir='b', img_path='a'),
            {f'{DATA}.data_prefix.seg_map_path': 'b'},
        ),
        (
            'DATA007',
            {f'{DATA}.data_prefix': 'a', f'{DATA}.type': SEG_DATA},
            {},
        ),
        ('EVAL002', best('mAP'), {}),
        ('LOOP004', checkpoints(ITERS, interval=1), {}),
        (
            'LOOP004',
            checkpoints({**ITERS, 'val_interval': 500}, interval=500),
            {'default_hooks.checkpoint.by_epoch': False},
        ),
        (
            'LOOP007',
            scale(enable=True, base_batchsize=16),
            {'auto_scale_lr.base_batch_size': 16},
        ),
        # What counts to epochs has to be multiplied.
        (
            'SCHED001',
            {**schedule(type='StepLR', step_size=30), 'train_cfg': ITERS},
            {},
        ),
        (
            'SCHED001',
            {
                **schedule(type='MultiStepLR', milestones=[600, 800]),
                'train_cfg': {**ITERS, 'max_iters': 1000},
            },
            {'param_scheduler[0].by_epoch': False},
        ),
        ('SCHED008', schedule(type='LinearLR', by_epoch=False, end=1), {}),
        # One of several that share the training.
        (
            'SCHED002',
            schedule(type='CosineAnnealingLR', T_max=300, begin=150, end=300),
            {},
        ),
    ],
)
def test_what_is_offered(rule, changes, options):
    (finding,) = lint(changes, rule)
    offered = finding.options.items()
    assert {k: v for k, v in offered if v != '__delete__'} == options


def test_samplers_that_are_none():
    for loader, severity in ((LOADER, 'WARNING'), ('val_dataloader', 'INFO')):
        cfg = changed({})
        cfg[loader].sampler = None
        (finding,) = lint(cfg, 'DATA003')
        sampler = {'type': 'DefaultSampler', 'shuffle': loader == LOADER}
        assert finding.severity.name == severity
        assert finding.options == {f'{loader}.sampler': sampler}
    changes = {f'{LOADER}.sampler': None, f'{LOADER}.shuffle': True}
    assert lint(changes, 'DATA003')
    assert lint(changes, 'DATA003', environ={'WORLD_SIZE': '1'}) == []


def test_a_logged_loss_beside_one_that_is_summed():
    losses = [{'type': 'mmseg.DiceLoss', 'loss_name': 'dice'}]
    changes = head()
    changes['model.decode_head']['loss_decode'] = losses
    (finding,) = lint(changes, 'LOSS002')
    assert finding.key == 'model.decode_head.loss_decode[0].loss_name'
    losses.append({'type': 'mmseg.CrossEntropyLoss'})
    (finding,) = lint(changes, 'LOSS002')
    assert (finding.severity.name, finding.options) == ('WARNING', {})


def test_batch_sizes():
    assert lint(scale(base_batch_size=16), 'LOOP006', world=8) == []
    (finding,) = lint(scale(base_batch_size=16), 'LOOP006', world=4)
    assert finding.severity.name == 'INFO'
    (finding,) = lint(scale(base_batch_size=16), 'LOOP006', world=2)
    assert '4 images (2 of 2 processes)' in finding.message
    assert 'scaled to them it is 0.005, and lr=0.02 is 4 times as large' in (
        finding.message
    )
    assert finding.severity.name == 'WARNING'
    changes = scale(base_batch_size=16)
    changes['optim_wrapper.accumulative_counts'] = 4
    assert lint(changes, 'LOOP006', world=2) == []
    # By the square root.
    changes = scale(base_batch_size=16)
    changes['optim_wrapper.optimizer'] = {'type': 'AdamW', 'lr': 1e-4}
    (finding,) = lint(changes, 'LOOP006', world=1)
    assert finding.severity.name == 'INFO'


@pytest.mark.parametrize(
    ('lr', 'batch', 'world', 'severity'),
    [
        # Of a host's config for 8 x 2 images, by its name.
        (None, 2, 8, ''),
        (None, 4, 8, 'INFO'),
        (None, 2, 1, 'WARNING'),
        (None, 16, 1, ''),
        (None, 8, 8, 'WARNING'),
        # Scaled, smaller for a fine-tuning, and too large.
        (0.0025, 2, 1, ''),
        (0.0001, 2, 8, ''),
        (0.02, 1, 1, 'WARNING'),
        (0.04, 2, 8, 'INFO'),
    ],
)
def test_rates_of_a_base(lr, batch, world, severity, tmp_path):
    (tmp_path / 'detector_8xb2_1x.py').write_text("""
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.02))
train_dataloader = dict(batch_size=2)
auto_scale_lr = dict(enable=False, base_batch_size=64)
""")
    file = tmp_path / 'mine_1xb1.py'
    rate = f'optim_wrapper = dict(optimizer=dict(lr={lr}))' if lr else ''
    file.write_text(f"""
_base_ = 'detector_8xb2_1x.py'
train_dataloader = dict(batch_size={batch})
{rate}
""")
    cfg = Config.fromfile(file)
    findings = lint(cfg, 'LOOP006', world=world)
    assert [f.severity.name for f in findings] == [severity][: len(severity)]
    cfg.optim_wrapper.optimizer = {'type': 'AdamW', 'lr': 1.0}
    # What another optimizer needs is not known.
    assert lint(cfg, 'LOOP006', world=world) == []


LOAD = [{'type': 'LoadImageFromFile'}, {'type': 'LoadAnnotations'}]


@pytest.mark.parametrize(
    ('kind', 'wrong'),
    [('MixUp', True), ('Mosaic', True), ('CachedMosaic', False)],
)
def test_steps_that_mix(kind, wrong):
    wrapper = {
        'type': 'MultiImageMixDataset',
        'dataset': {'type': 'CocoDataset', 'pipeline': LOAD},
        'pipeline': [{'type': kind}],
    }
    assert lint({DATA: wrapper}, 'PIPE004') == []
    wrapper['dataset']['pipeline'] = [*LOAD, {'type': kind}]
    findings = lint({DATA: wrapper}, 'PIPE004')
    assert [finding.key for finding in findings] == (
        [f'{DATA}.dataset.pipeline[2]'] if wrong else []
    )


def test_edges_with_another_value_to_ignore():
    cfg = Config.fromfile(mmext.config_path('pidnet/pidnet_s_camvid.py'))
    data = cfg.train_dataloader.dataset
    while 'pipeline' not in data:
        data = data.dataset
    for step in data.pipeline:
        if step['type'].endswith('GenerateEdge'):
            step['ignore_index'] = 255
    (finding,) = lint(cfg, 'PIPE')
    assert 'ignores 255, the head 11' in finding.message


def files(loader, evaluator):
    return {
        'val_dataloader.dataset.data_root': 'data/',
        'val_dataloader.dataset.ann_file': loader,
        'val_evaluator.ann_file': evaluator,
    }


@pytest.mark.parametrize('evaluator', ['./data//a.json', 'data/b/../a.json'])
def test_the_same_annotations(evaluator):
    assert lint(files('a.json', evaluator), 'EVAL') == []


def test_other_annotations():
    # Links and copies cannot be seen from here.
    (finding,) = lint(files('a.json', 'data/b.json'), 'EVAL001')
    assert (finding.severity.name, finding.options) == ('WARNING', {})


def test_annotations_of_a_base(tmp_path):
    base = tmp_path / 'base.py'
    base.write_text(changed(files('a.json', 'data/a.json')).pretty_text)
    child = tmp_path / 'child.py'
    child.write_text(
        "_base_ = 'base.py'\n"
        "val_dataloader = dict(dataset=dict(data_root='mine/'))\n"
    )
    (finding,) = lint(Config.fromfile(child), 'EVAL001')
    assert finding.severity.name == 'ERROR'
    assert finding.options == {'val_evaluator.ann_file': 'mine/a.json'}


def test_annotations_of_the_same_images(tmp_path):
    for name, ids in (('a', (1, 2)), ('b', (2, 1)), ('c', (3,))):
        images = [{'id': number} for number in ids]
        text = json.dumps({'images': images, 'name': name})
        (tmp_path / f'{name}.json').write_text(text)

    def find(one, two):
        paths = (str(tmp_path / f'{name}.json') for name in (one, two))
        return lint(files(*paths), 'EVAL001')

    assert find('a', 'b') == []
    (misplaced,) = find('a', 'c')
    assert (misplaced.severity.name, misplaced.options) == ('ERROR', {})


@pytest.mark.parametrize(
    ('annotations', 'metric', 'severity'),
    [
        ('', {}, 'ERROR'),
        (', "annotations" : [ ]', {}, 'ERROR'),
        (', "annotations": [{"id": 1}]', {}, ''),
        ('', {'val_evaluator.format_only': True}, ''),
        ('', {'val_evaluator.type': 'DumpDetResults'}, ''),
    ],
)
def test_labels_that_are_kept_back(annotations, metric, severity, tmp_path):
    file = tmp_path / 'a.json'
    file.write_text(f'{{"images": [{{"id": 1}}]{annotations}}}')
    findings = lint({**files(str(file), str(file)), **metric}, 'EVAL003')
    assert [f.severity.name for f in findings] == [severity][: len(severity)]


RANKS = {
    'RANK': '0',
    'LOCAL_RANK': '0',
    'WORLD_SIZE': '2',
    'LOCAL_WORLD_SIZE': '2',
    'MASTER_ADDR': 'localhost',
    'MASTER_PORT': '29500',
}


@pytest.mark.parametrize(
    ('environ', 'text'),
    [
        ({}, ''),
        ({'LOCAL_RANK': '0'}, ''),
        (RANKS, ''),
        ({**RANKS, 'RANK': '2'}, 'rank must be below'),
        ({**RANKS, 'RANK': ''}, 'RANK must be a whole number'),
        ({**RANKS, 'LOCAL_RANK': '2'}, 'LOCAL_RANK must be below'),
        ({**RANKS, 'LOCAL_WORLD_SIZE': '3'}, 'not above WORLD_SIZE'),
        ({**RANKS, 'MASTER_ADDR': ''}, 'needs MASTER_ADDR'),
        ({'MASTER_PORT': '65536'}, '1 to 65535'),
        ({'CUDA_VISIBLE_DEVICES': ''}, ''),
        ({'CUDA_VISIBLE_DEVICES': '-1'}, ''),
        ({'CUDA_VISIBLE_DEVICES': '0,-1,1'}, 'before -1'),
        (
            {'CUDA_VISIBLE_DEVICES': '0', 'LOCAL_WORLD_SIZE': '2'},
            '2 processes of this machine have 1',
        ),
        ({'CUDA_VISIBLE_DEVICES': '0,1', 'LOCAL_WORLD_SIZE': '2'}, ''),
    ],
)
def test_environment(environ, text):
    findings = lint({}, 'ENV', environ=environ)
    assert len(findings) == bool(text)
    assert all(text in finding.message for finding in findings)


def test_port_that_is_in_use():
    with socket.socket() as server:
        server.bind(('', 0))
        server.listen()
        port = str(server.getsockname()[1])
        assert lint({}, 'ENV002', environ={'MASTER_PORT': port})
        # Inside of a launch, it is the launch that listens.
        environ = {**RANKS, 'MASTER_PORT': port}
        assert lint({}, 'ENV002', environ=environ) == []
    assert lint({}, 'ENV002', environ={'MASTER_PORT': port}) == []


@pytest.mark.parametrize('cuda', [True, False])
@pytest.mark.parametrize('backend', ['gloo', 'nccl'])
def test_details_of_gloo(monkeypatch, cuda, backend):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: cuda)
    changes = {'env_cfg': {'dist_cfg': {'backend': backend}}}
    environ = {'TORCH_DISTRIBUTED_DEBUG': 'detail'}
    findings = lint(changes, 'ENV004', environ=environ)
    assert bool(findings) is (backend == 'gloo' or not cuda)
    environ['TORCH_DISTRIBUTED_DEBUG'] = 'INFO'
    assert lint(changes, 'ENV004', environ=environ) == []


def test_work_dir(tmp_path, monkeypatch):
    assert lint({'work_dir': str(tmp_path / 'a' / 'b')}, 'ENV006') == []
    monkeypatch.setattr(os, 'access', lambda path, mode: False)
    (finding,) = lint({'work_dir': str(tmp_path)}, 'ENV006')
    assert 'cannot be written to' in finding.message


@pytest.mark.parametrize('name', ['val_evaluator', 'val_cfg', 'optim_wrapper'])
def test_names_what_a_split_lacks(name):
    (finding,) = lint({name: None}, 'LOOP001')
    assert finding.names == (name,)
    assert name not in finding.key


def test_copies_of_annotations_beyond_memory(tmp_path):
    """4 TiB of zeros, which no disk has to hold."""
    path = tmp_path / 'large.json'
    with path.open('wb') as file:
        file.truncate(2**42)
    changes = {
        'train_dataloader.dataset.ann_file': str(path),
        'train_dataloader.dataset.serialize_data': False,
    }
    (finding,) = lint(changes, 'DATA010')
    assert finding.severity.name == 'WARNING'
    assert list(finding.options.values()) == [True]
    assert '2 workers' in finding.message
    assert 'together 49152.0 GiB' in finding.message
    changes['train_dataloader.num_workers'] = 0
    changes['train_dataloader.persistent_workers'] = False
    assert lint(changes, 'DATA010') == []


def test_what_mmengine_does_with_a_metric_that_rises():
    """By its defaults: the rate falls, and the training stops."""
    metrics = [0.3 + 0.005 * step for step in range(20)]
    optimizer = torch.optim.SGD([torch.zeros(1)], 1.0)
    schedule = ReduceOnPlateauLR(optimizer, monitor=AP)
    for metric in metrics:
        schedule.step({AP: metric})
    assert optimizer.param_groups[0]['lr'] < 1
    for min_delta, stops in ((0.1, True), (0.001, False)):
        hook = EarlyStoppingHook(AP, patience=10, min_delta=min_delta)
        said = [hook._check_stop_condition(metric)[0] for metric in metrics]
        assert any(said) == stops


MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
NORMALIZE = {'type': 'Normalize', 'mean': MEAN, 'std': STD}


@pytest.mark.parametrize(
    ('mean', 'std', 'steps', 'expected'),
    [
        (MEAN, STD, [], False),
        # Of Caffe, of pictures in [0, 1], of none, and both in two steps.
        ([103.53, 116.28, 123.675], [1.0] * 3, [], False),
        ([0.0] * 3, [255.0] * 3, [], False),
        (None, None, [NORMALIZE], False),
        (
            [0.485, 0.456, 0.406],
            [0.229, 0.224, 0.225],
            [{**NORMALIZE, 'mean': [0] * 3, 'std': [255] * 3}],
            False,
        ),
        (MEAN, STD, [NORMALIZE], True),
        (MEAN, [0.229, 0.224, 0.225], [], True),
        ([0.5] * 3, [0.5] * 3, [], True),
        # What reads or changes the pictures is not known.
        ([0.5] * 3, [0.5] * 3, [{'type': 'MyScale'}], False),
        ([0.5] * 3, [0.5] * 3, [{'type': 'Albu', 'transforms': []}], False),
    ],
)
def test_values_of_pictures(mean, std, steps, expected):
    batch = {'type': 'DetDataPreprocessor', 'mean': mean, 'std': std}
    load = [{'type': 'LoadImageFromFile'}, {'type': 'LoadAnnotations'}]
    changes = {
        'model.data_preprocessor': batch,
        f'{DATA}.pipeline': [*load, *steps, {'type': 'PackDetInputs'}],
        'load_from': 'https://a.org/a.pth',
    }
    results = lint(changes, 'PIPE008')
    assert [f.severity.name for f in results] == ['ERROR'] * expected
    if expected and steps:
        # The host's own code makes each channel nearly one value.
        picture = np.array([[[0] * 3, [255] * 3]], np.uint8)
        sample = Normalize(MEAN, STD)({'img': picture})['img']
        inputs = {'inputs': [torch.tensor(sample).permute(2, 0, 1)]}
        inputs['data_samples'] = [DetDataSample()]
        twice = DetDataPreprocessor(mean, std)(inputs)['inputs']
        assert (twice.amax((0, 2, 3)) - twice.amin((0, 2, 3))).max() < 0.1
