"""Backbones of transformers, whose own models are the oracle.

All models are small and random; nothing is downloaded.
"""

import re

import pytest
import torch
from helpers import toy_ranks
from helpers.reduce_config import reduce_model
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch.testing import assert_close

import mmext
from mmext.datasets import ShapesSpec, write_shapes_dataset
from mmext.models import HFBackbone
from mmext.models import hf_backbone as module

SMALL = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
V2 = dict(model_type='dinov2', patch_size=14, image_size=56, **SMALL)
V3 = dict(
    model_type='dinov3_vit',
    patch_size=16,
    intermediate_size=64,
    num_register_tokens=4,
    **SMALL,
)
BOTH = pytest.mark.parametrize('config', [V2, V3], ids=['dinov2', 'dinov3'])
NAME = 'co_dino/co_dino_dinov2_vit_s14_frozen_bccd.py'


@pytest.fixture
def transformers():
    return pytest.importorskip('transformers')


@pytest.fixture
def folder(transformers, tmp_path):
    """Writes what the hub has: the whole model, not the backbone of it."""

    def write(config: dict):
        config = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModel.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.2)
        model.save_pretrained(tmp_path / 'dino')
        return str(tmp_path / 'dino'), model

    return write


def init_cfg(folder: str) -> dict:
    return dict(type='Pretrained', checkpoint=folder)


@BOTH
@pytest.mark.parametrize('named', [True, False])
def test_maps_are_those_of_the_package(folder, config, named):
    """Of a folder, or of a dict with the weights of a folder."""
    path, model = folder(config)
    backbone = HFBackbone(path) if named else None
    if not named:
        backbone = HFBackbone(config, init_cfg=init_cfg(path))
    before = backbone.state_dict()
    backbone.init_weights()
    assert before.keys() == backbone.state_dict().keys()
    side = config['patch_size']
    images = torch.randn(2, 3, 4 * side, 5 * side)
    with torch.no_grad():
        (output,) = backbone.eval()(images)
        expected = model(images).last_hidden_state
    patches = expected[:, 1 + config.get('num_register_tokens', 0) :]
    expected = patches.transpose(1, 2).reshape(2, 32, 4, 5)
    assert output.abs().max() > 0.1
    assert torch.equal(output, expected)


@BOTH
def test_stages_are_the_hidden_states(folder, config):
    path, model = folder({**config, 'apply_layernorm': False})
    backbone = HFBackbone(path, out_indices=[1, 2])
    backbone.init_weights()
    side = config['patch_size']
    images = torch.randn(1, 3, 3 * side, 2 * side)
    with torch.no_grad():
        outputs = backbone.eval()(images)
        expected = model(images, output_hidden_states=True).hidden_states
    for output, state in zip(outputs, expected[1:3], strict=True):
        state = state[:, 1 + config.get('num_register_tokens', 0) :]
        assert torch.equal(output, state.transpose(1, 2).reshape(1, 32, 3, 2))


@BOTH
@pytest.mark.parametrize('frozen', [-1, 0, 2, 3])
def test_only_what_is_not_frozen_learns(transformers, config, frozen):
    """What has a gradient is what is trained: DDP waits for no more."""
    backbone = HFBackbone(config, frozen_stages=frozen).train()
    side = config['patch_size']
    (output,) = backbone(torch.randn(2, 3, side * 4, side * 2))
    assert output.requires_grad == (frozen < 3)
    if frozen < 3:
        output.square().mean().backward()
    trained = {k for k, p in backbone.named_parameters() if p.requires_grad}
    assert trained == {
        k for k, p in backbone.named_parameters() if p.grad is not None
    }
    layers = {
        int(re.search(r'layer\.(\d)', k)[1]) for k in trained if '.layer.' in k
    }
    assert layers == set(range(max(frozen, 0), 3))
    assert any('embeddings' in k for k in trained) == (frozen == -1)
    assert any(re.search(r'model\.(layer)?norm\.', k) for k in trained) == (
        frozen < 3
    )
    modes = {
        name: part.training for name, part in backbone.model.named_modules()
    }
    assert modes[''] == (frozen < 3)
    assert modes['embeddings'] == (frozen < 0)
    # DINOv3 moves positions at random in training.
    assert modes.get('rope_embeddings', frozen < 0) == (frozen < 0)


def test_layers_behind_the_last_map_are_not_trained(transformers):
    backbone = HFBackbone(V3, out_indices=[2])
    backbone(torch.randn(1, 3, 32, 32))[0].square().mean().backward()
    without = {k for k, p in backbone.named_parameters() if p.grad is None}
    assert without == {
        k for k, p in backbone.named_parameters() if not p.requires_grad
    }
    assert all('layer.2.' in k or 'mask_token' in k for k in without)


def test_stages_of_other_families(transformers):
    config = dict(depths=[1, 1, 2, 1], hidden_sizes=[8, 16, 32, 64])
    backbone = HFBackbone(
        dict(model_type='dinov3_convnext', **config),
        out_indices=[2, 3, 4],
        frozen_stages=2,
    )
    shapes = [tuple(x.shape[1:]) for x in backbone(torch.zeros(1, 3, 64, 96))]
    assert shapes == [(16, 8, 12), (32, 4, 6), (64, 2, 3)]
    frozen = {k for k, p in backbone.named_parameters() if not p.requires_grad}
    assert {re.search(r'stages\.(\d)', k)[1] for k in frozen} == {'0', '1'}


@pytest.mark.parametrize(
    ('kwargs', 'text'),
    [
        (dict(config=SMALL), 'config must be a name, a folder, or a dict'),
        (
            dict(config={**V2, 'num_layers': 3, 'depth': 4}),
            r"keys of Dinov2Config, got \['num_layers', 'depth'\]",
        ),
        (dict(frozen_stages=4), r'frozen_stages must be in \[-1, 3\], got 4'),
        (dict(init_cfg=dict(type='Xavier')), 'must be of type Pretrained'),
        (dict(config=dict(model_type='bert')), 'BertConfig'),
    ],
)
def test_wrong_arguments(transformers, kwargs, text):
    with pytest.raises(ValueError, match=text):
        HFBackbone(**{'config': V2, **kwargs})


def test_pictures_that_are_not_whole_patches(transformers):
    text = r'multiple of patch_size \(14, 14\), got \(56, 64\).*pad_size_div'
    with pytest.raises(ValueError, match=text):
        HFBackbone(V2)(torch.zeros(1, 3, 56, 64))


def test_weights_that_are_not_there(folder):
    path, _ = folder({**V2, 'num_hidden_layers': 2})
    with pytest.raises(ValueError, match=r'without \[.encoder\.layer\.2\.'):
        HFBackbone(V2, init_cfg=init_cfg(path)).init_weights()


def test_names_of_another_version(transformers):
    """They are not loaded in part, with a line in the log."""
    backbone = HFBackbone(V2)
    state = {
        key.replace('layer.0.norm1', 'layer.0.ln1'): value
        for key, value in backbone.state_dict().items()
    }
    backbone.load_state_dict({'conv1.weight': torch.ones(1)}, strict=False)
    with pytest.raises(ValueError, match=r'version that they were written'):
        backbone.load_state_dict(state, strict=False)


def test_names_the_extra_where_the_package_is_missing(monkeypatch):
    monkeypatch.setattr(module, 'find_spec', lambda _: None)
    with pytest.raises(ImportError, match=r"install 'mmext\[transformers\]'"):
        HFBackbone(V2)


@BOTH
def test_rates_decay_from_layer_to_layer(transformers, config):
    model = torch.nn.Module()
    model.backbone = HFBackbone(config)
    model.head = torch.nn.Linear(2, 2)
    settings = dict(
        constructor='mmext.MergedOptimWrapperConstructor',
        optimizer=dict(type='SGD', lr=1.0),
        paramwise_cfg=dict(layer_decay_rate=0.5),
    )
    groups = build_optim_wrapper(model, settings).optimizer.param_groups
    rates = {id(p): group['lr'] for group in groups for p in group['params']}
    rates = {k: rates.get(id(p)) for k, p in model.named_parameters()}
    layer = 'encoder' if config is V2 else 'model'
    for index in range(3):
        name = f'backbone.model.{layer}.layer.{index}.norm1.weight'
        assert rates[name] == 0.5 ** (3 - index)
    assert rates['backbone.model.embeddings.cls_token'] == 0.5**4
    assert rates['head.weight'] == 1.0
    assert rates['backbone.model.embeddings.mask_token'] is None


def small_detector(path, weights: str) -> Config:
    """The detector of the config, in small, on generated shapes."""
    spec = ShapesSpec(image_size=(96, 80), empty_fraction=0.0)
    write_shapes_dataset(path / 'data', spec, num_train=8, num_val=2)
    cfg = Config.fromfile(mmext.config_path('co_dino/co_dino_r18_shapes.py'))
    dino = Config.fromfile(mmext.config_path(NAME)).to_dict()['model']
    cfg.model = reduce_model({**dino, 'num_classes': 6})
    cfg.model.backbone.update(
        config=V2, frozen_stages=3, init_cfg=init_cfg(weights)
    )
    cfg.model.neck.in_channels = [32]
    cfg.data_root = f'{path}/data/'
    cfg.merge_from_dict({'train_dataloader.batch_size': 2})
    cfg.merge_from_dict({'train_cfg': dict(max_epochs=2, val_interval=2)})
    return cfg


@pytest.mark.slow
@pytest.mark.xdist_group('processes')
def test_a_frozen_backbone_in_two_processes(folder, tmp_path):
    """Trained, stopped after an epoch, and resumed to the same end."""
    weights, model = folder(V2)
    small_detector(tmp_path, weights).dump(tmp_path / 'dino.py')

    def train(name, *more):
        argv = [tmp_path / 'dino.py', '--work-dir', tmp_path / name]
        argv += ['--device', 'cpu', *more]
        ranks = toy_ranks.start_ranks(argv, 2, tmp_path / 'out', tool='train')
        assert ranks.wait(240) == [0, 0], ranks.output()[-3000:]
        file = tmp_path / name / 'epoch_2.pth'
        return torch.load(file, weights_only=False)['state_dict']

    whole = train('whole')
    middle = tmp_path / 'whole' / 'epoch_1.pth'
    assert_close(train('part', '--resume', middle), whole, rtol=0, atol=0)
    # As the hub gave them, after the training too.
    saved = {
        key.removeprefix('backbone.model.'): value
        for key, value in whole.items()
        if key.startswith('backbone.')
    }
    assert saved.keys() == model.state_dict().keys()
    assert_close(saved, dict(model.state_dict()), rtol=0, atol=0)
