"""Models and optimizers of configs, built on one CPU."""

import urllib.request
from collections import OrderedDict

import pytest
import torch
from helpers.preflight_configs import detector, segmentor
from mmdet.models.dense_heads import RetinaHead
from mmengine.logging import MessageHub
from mmengine.model import BaseDataPreprocessor, BaseModule
from mmengine.registry import MODELS
from torch import nn

from mmext.checks.preflight.build import (
    build_for_preflight,
    drop_init_weights,
    drop_weights,
)
from mmext.checks.preflight.sandbox import CannotBuildError


def state(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def test_builds_without_weights_or_data():
    built = build_for_preflight(detector())
    assert type(built.model).__name__ == 'RetinaNet'
    assert built.task == 'detection'
    assert built.recipe.size == (160, 256)
    assert built.recipe.num_classes == 3
    assert any('torchvision://resnet18' in note for note in built.notes)
    assert built.random_weights
    held = {
        id(parameter)
        for group in built.optim_wrapper.param_groups
        for parameter in group['params']
    }
    assert held == {id(p) for p in built.model.parameters()}


@pytest.mark.parametrize('kind', ['SyncBN', 'MMSyncBN'])
def test_one_process_and_float32(kind):
    cfg = segmentor()
    cfg['model']['decode_head']['norm_cfg']['type'] = kind
    built = build_for_preflight(cfg)
    kinds = {type(module) for module in built.model.modules()}
    assert nn.SyncBatchNorm not in kinds
    assert type(built.optim_wrapper).__name__ == 'OptimWrapper'
    notes = ' '.join(built.notes)
    assert 'SyncBN are BN' in notes
    assert 'AmpOptimWrapper is OptimWrapper' in notes
    assert 'padded to (96, 192), not to (512, 1024)' in notes
    assert built.model.data_preprocessor.size == (96, 192)


def test_preprocessor_beside_the_model():
    cfg = segmentor()
    beside = cfg['model'].pop('data_preprocessor')
    built = build_for_preflight({**cfg, 'data_preprocessor': beside})
    assert built.model.data_preprocessor.size == (96, 192)
    built = build_for_preflight({**segmentor(), 'data_preprocessor': {}})
    assert built.model.data_preprocessor.size == (96, 192)


def test_parts_find_the_start_of_a_training(monkeypatch):
    monkeypatch.setattr(MessageHub, '_instance_dict', OrderedDict())
    loop = {'max_epochs': 12, 'by_epoch': True}
    build_for_preflight(detector(train_cfg=loop))
    hub = MessageHub.get_current_instance()
    assert hub.get_info('iter') == hub.get_info('epoch') == 0
    assert hub.get_info('max_epochs') == 12
    # MoCo v3 divides by it; how long an epoch is, is not known.
    assert hub.get_info('max_iters') == 12_000
    hub.update_info('iter', 7)
    build_for_preflight(detector())
    assert hub.get_info('iter') == 7


def test_model_that_can_only_load_weights(monkeypatch):
    def init_weights(self):
        raise AttributeError('no init_weights')

    monkeypatch.setattr(RetinaHead, 'init_weights', init_weights)
    built = build_for_preflight(detector())
    assert built.notes[1].endswith('fails without: no init_weights')
    cfg = detector()
    del cfg['model']['backbone']['init_cfg']
    with pytest.raises(CannotBuildError, match='no init_weights'):
        build_for_preflight(cfg)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_scope_is_found_by_the_prefix(scope):
    cfg = detector() if scope == 'mmdet' else segmentor()
    del cfg['default_scope']
    cfg['model']['type'] = f'{scope}.{cfg["model"]["type"]}'
    cfg['model']['_scope_'] = scope
    assert build_for_preflight(cfg).scope == scope


def test_rejects_config_without_model():
    with pytest.raises(CannotBuildError, match=r"must have a model.*\['a'\]"):
        build_for_preflight({'a': 1})


def test_names_the_part_that_raised():
    cfg = detector()
    cfg['model']['neck']['num_outs'] = 0
    with pytest.raises(
        CannotBuildError, match=r'build model\.neck: AssertionError'
    ):
        build_for_preflight(cfg)


def test_refuses_to_download_and_names_host(monkeypatch):
    class Downloading(BaseDataPreprocessor):
        def __init__(self, url):
            super().__init__()
            urllib.request.urlopen(url)

    monkeypatch.setitem(MODELS.module_dict, 'Downloading', Downloading)
    cfg = detector()
    cfg['model']['data_preprocessor'] = {
        'type': 'Downloading',
        'url': 'http://weights.invalid/a.pth',
    }
    with pytest.raises(
        CannotBuildError,
        match=r'data_preprocessor.*needs files of weights\.invalid .* fetch',
    ):
        build_for_preflight(cfg)


def test_what_only_a_file_would_have_given_a_value(monkeypatch):
    """As SAN's text encoder has: memory that nothing is written to."""
    make = RetinaHead.__init__

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.table = nn.Parameter(torch.empty(50, 40))

    monkeypatch.setattr(RetinaHead, '__init__', init)
    table = build_for_preflight(detector()).model.bbox_head.table
    assert 0.018 < table.std() < 0.022
    assert table.abs().max() < 0.2
    assert not torch.are_deterministic_algorithms_enabled()


def pretrained(name):
    return {'type': 'Pretrained', 'checkpoint': name}


def test_drops_all_locations_of_weights_and_says_so():
    kaiming = {'type': 'Kaiming', 'layer': 'Conv2d'}
    model = {
        'pretrained': 'open-mmlab://a',
        'backbone': {
            'init_cfg': pretrained('b.pth'),
            'stages': [{'init_cfg': [kaiming, pretrained('c.pth')]}],
        },
        'neck': {'pretrained': True, 'init_cfg': kaiming},
        'teacher_ckpt': 'https://d.pth',
    }
    notes = drop_weights(model)
    assert model == {
        'pretrained': None,
        'backbone': {'stages': [{'init_cfg': [kaiming]}]},
        'neck': {'pretrained': False, 'init_cfg': kaiming},
        'teacher_ckpt': None,
    }
    assert notes == [
        "model.pretrained: weights 'open-mmlab://a' are not loaded",
        "model.teacher_ckpt: weights 'https://d.pth' are not loaded",
        "model.backbone.init_cfg: weights 'b.pth' are not loaded",
        "model.backbone.stages[0].init_cfg: weights 'c.pth' are not loaded",
        'model.neck.pretrained: weights True are not loaded',
    ]


def test_drops_what_default_arguments_load():
    inner = BaseModule(init_cfg=pretrained('a.pth'))
    inner.pretrained = 'b.pth'
    other = BaseModule(init_cfg={'type': 'Normal', 'layer': 'Linear'})
    model = nn.ModuleDict({'inner': inner, 'other': other})
    assert drop_init_weights(model) == [
        "inner: weights 'a.pth' are not loaded",
        "inner: weights 'b.pth' are not loaded",
    ]
    assert inner.init_cfg is None
    assert inner.pretrained is None
    assert other.init_cfg['type'] == 'Normal'
