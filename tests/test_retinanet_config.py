"""The config of a host's detector whose ``with_cp`` the hook takes over."""

import copy
from functools import cache

import pytest
import torch
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine import Config
from mmengine.hub import get_config
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from mmengine.structures import InstanceData
from reference.host_checkpoints import reentrant_nodes
from torch import Tensor

import mmext
from mmext.models.checkpointing.reentrant import replace_reentrant_checkpoints

NAME = 'retinanet/retinanet_r50_fpn_cp_8xb2_1x_coco.py'
SIZE = (64, 96)


@cache
def load() -> Config:
    return Config.fromfile(mmext.config_path(NAME))


def small_cfg(**backbone) -> dict:
    """The model's config with few channels, and a ResNet-18."""
    cfg = copy.deepcopy(load().to_dict()['model'])
    cfg['backbone'].update(
        depth=18, base_channels=4, stem_channels=4, init_cfg=None, **backbone
    )
    cfg['neck'].update(in_channels=[4, 8, 16, 32], out_channels=8)
    cfg['bbox_head'].update(in_channels=8, feat_channels=8, stacked_convs=1)
    return cfg


def small_model(**backbone) -> BaseModel:
    torch.manual_seed(0)
    return MODELS.build(small_cfg(**backbone)).train()


def make_batch() -> dict:
    """One image with one object."""
    sample = DetDataSample(metainfo={'img_shape': SIZE, 'pad_shape': SIZE})
    sample.gt_instances = InstanceData(
        bboxes=torch.tensor([[4.0, 4.0, 40.0, 44.0]]), labels=torch.tensor([3])
    )
    torch.manual_seed(1)
    image = torch.randint(0, 255, (3, *SIZE), dtype=torch.uint8)
    return {'inputs': [image], 'data_samples': [sample]}


def total_loss(model: BaseModel) -> Tensor:
    data = model.data_preprocessor(make_batch(), training=True)
    return model.parse_losses(model(**data, mode='loss'))[0]


def test_says_what_it_is_for():
    cfg = load()
    assert cfg.model.backbone.with_cp is True
    hook = HOOKS.build(copy.deepcopy(cfg.default_hooks.activation_checkpoint))
    assert hook.replace_reentrant is True
    # The other default hooks are still there.
    assert cfg.default_hooks.checkpoint.type == 'mmext.AtomicCheckpointHook'
    assert not cfg.get('find_unused_parameters')


def bare(value):
    """A config without scopes, as mmdet writes them."""
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if k != '_scope_'}
    if isinstance(value, list):
        return [bare(item) for item in value]
    return value.removeprefix('mmdet.') if isinstance(value, str) else value


def test_model_is_that_of_mmdet():
    path = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
    expected = bare(get_config(path).to_dict()['model'])
    actual = bare(load().to_dict()['model'])
    assert actual['backbone'].pop('with_cp') is True
    assert actual == expected


def test_full_size_builds():
    cfg = load().to_dict()['model']
    cfg['backbone']['init_cfg'] = None
    with torch.device('meta'):
        model = MODELS.build(cfg)
    assert len(replace_reentrant_checkpoints(model)) == 16


@pytest.mark.parametrize('stem', ['frozen', 'trained'])
def test_a_step_is_that_without_checkpoints(stem: str):
    results = []
    frozen = {'frozen_stages': 1 if stem == 'frozen' else -1}
    for with_cp in (True, False):
        model = small_model(with_cp=with_cp, **frozen)
        names = replace_reentrant_checkpoints(model)
        assert len(names) == (8 if with_cp else 0)
        loss = total_loss(model)
        assert reentrant_nodes(loss) == 0
        loss.backward()
        params = dict(model.named_parameters())
        trained = {k: p.grad for k, p in params.items() if p.requires_grad}
        assert None not in trained.values()
        results.append({'loss': loss.detach(), **trained})
    for key, value in results[1].items():
        assert torch.equal(results[0][key], value), key


def test_the_shipped_backbone_is_reentrant_without_the_hook():
    assert reentrant_nodes(total_loss(small_model())) > 0
