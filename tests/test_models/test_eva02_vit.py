"""EVA-02's backbone and its neck, against the recorded public modules."""

from pathlib import Path

import pytest
import torch
from helpers.reduce_config import reduce_model, state_spec
from mmengine import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from torch.testing import assert_close

import mmext
from mmext.models import EVA02ViT, SimpleFeaturePyramid
from mmext.models.checkpointing.checkpoint import is_checkpointed
from mmext.models.co_dino import convert_codetr_state_dict

ORACLES = Path(__file__).parents[1] / 'oracles'
ARCH = dict(embed_dims=64, num_layers=3, num_heads=1)


@pytest.fixture(scope='module')
def recorded():
    return torch.load(ORACLES / 'eva02_vit.pt', weights_only=True)


def vit(**kwargs) -> EVA02ViT:
    options = dict(window_size=3, global_indices=[2], pretrain_img_size=64)
    options |= dict(in_channels=1)
    return EVA02ViT(**{'arch': ARCH, **options, **kwargs})


def load(model, record):
    state = {key: value.float() for key, value in record['state'].items()}
    model.load_state_dict(state, strict=True)
    return model


def check(model, record, call):
    inputs = [x.clone().requires_grad_() for x in record['inputs']]
    outputs = [call(x) for x in inputs]
    assert_close(
        [list(out) for out in outputs],
        record['outputs'],
        rtol=1e-5,
        atol=1e-5,
    )
    loss = sum((t * t.detach().cos()).sum() for out in outputs for t in out)
    loss.backward()
    gradients = {k: p.grad for k, p in model.named_parameters()}
    scale = {k: g.abs().max() for k, g in record['gradients'].items()}
    for name, gradient in record['gradients'].items():
        assert_close(
            gradients.pop(name) / scale[name],
            gradient / scale[name],
            rtol=1e-4,
            atol=1e-4,
            msg=lambda text, name=name: f'{name}: {text}',
        )
    assert not gradients
    for one, other in zip(inputs, record['input_gradients']):
        assert_close(one.grad, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('with_cp', [False, 2, True])
def test_public_backbone(recorded, with_cp):
    model = load(vit(with_cp=with_cp), recorded['vit'])
    assert sum(map(is_checkpointed, model.blocks)) == {True: 3}.get(
        with_cp, int(with_cp)
    )
    check(model, recorded['vit'], model)


def test_public_backbone_with_a_stored_table(recorded):
    """Large-scale jittering: its state dict has tables that are left out."""
    model, record = load(vit(), recorded['vit']), recorded['lsj']
    assert all('rope' in key for key in record['keys'])
    assert_close(
        model(record['inputs'])[0], record['outputs'], rtol=1e-5, atol=1e-5
    )


def test_public_neck(recorded):
    model = load(SimpleFeaturePyramid([16], 8), recorded['sfp'])
    check(model, recorded['sfp'], lambda x: model([x]))
    four = SimpleFeaturePyramid(16, 8, num_outs=4)
    maps = four([torch.zeros(1, 16, 5, 7)])
    sizes = [tuple(m.shape[1:]) for m in maps]
    assert sizes == [(8, 10, 14), (8, 5, 7), (8, 3, 4), (8, 2, 2)]


@pytest.mark.parametrize(
    ('kwargs', 'text'),
    [
        (dict(arch='giant'), 'arch must be one of'),
        (dict(arch={'depth': 1}), 'arch must be one of'),
        (dict(arch=ARCH | {'num_heads': 3}), 'embed_dims of arch must be'),
        (dict(window_size=0), 'window_size must be at least 1'),
        (dict(global_indices=[3]), r'global_indices must be in \[0, 3\)'),
        (dict(pretrain_img_size=50), 'pretrain_img_size must be a multiple'),
        (dict(frozen_stages=4), r'frozen_stages must be in \[-1, 3\]'),
        (dict(with_cp=4), 'with_cp'),
    ],
)
def test_wrong_arguments(kwargs, text):
    with pytest.raises(ValueError, match=text):
        vit(**kwargs)


@pytest.mark.parametrize(
    ('args', 'text'),
    [
        (([8, 16], 4), 'in_channels must be of one map'),
        ((6, 4), 'in_channels must be a multiple of 4'),
        ((8, 4, 3), 'num_outs must be 4 or 5'),
    ],
)
def test_wrong_arguments_of_the_neck(args, text):
    with pytest.raises(ValueError, match=text):
        SimpleFeaturePyramid(*args)


def test_frozen_blocks_stay_as_they_are():
    model = vit(frozen_stages=2).train()
    model(torch.randn(1, 1, 48, 48))[0].square().mean().backward()
    trained = {k for k, p in model.named_parameters() if p.grad is not None}
    assert trained == {
        k
        for k, _ in model.named_parameters()
        if k.startswith(('blocks.2.', 'out_norm.'))
    }
    assert not any(block.training for block in model.blocks[:2])


def test_positions_and_patches_of_another_size():
    """Pre-trained weights of 14 pixels a patch, and of another grid."""
    model = vit()
    state = model.state_dict()
    state['pos_embed'] = torch.ones(1, 1 + 49, 64)
    state['patch_embed.proj.weight'] = torch.ones(64, 1, 14, 14)
    model.load_state_dict(state)
    assert_close(model.pos_embed, torch.ones(1, 17, 64))
    assert_close(model.patch_embed.proj.weight, torch.ones(64, 1, 16, 16))
    state['pos_embed'] = torch.ones(1, 8, 64)
    with pytest.raises(ValueError, match='pos_embed must hold 1 class token'):
        model.load_state_dict(state)


@pytest.mark.parametrize(
    ('name', 'prefix'),
    [('model', ''), ('module', ''), ('state_dict', 'module.backbone.')],
)
def test_weights_of_a_file(tmp_path, name, prefix):
    file, saved = tmp_path / 'eva02.pt', vit().state_dict()
    state = {prefix + key: value for key, value in saved.items()}
    state[f'{prefix}blocks.0.attn.rope.freqs_cos'] = torch.ones(9, 64)
    torch.save({name: {'neck.x': torch.ones(1), **state}}, file)
    init_cfg = dict(type='Pretrained', checkpoint=str(file))
    model = vit(init_cfg=init_cfg)
    model.init_weights()
    assert_close(model.state_dict(), saved)
    torch.save({name: {'conv1.weight': torch.ones(1)}}, file)
    with pytest.raises(ValueError, match=r"EVA02ViT, got \['conv1.weight'\]"):
        vit(init_cfg=init_cfg).init_weights()


@pytest.fixture(scope='module')
def config():
    return Config.fromfile(
        mmext.config_path('co_dino/co_dino_5scale_vit_l_16xb1_1x_coco.py')
    )


@pytest.mark.parametrize(
    ('name', 'config'),
    [
        ('vit_l', 'vit_l_16xb1_1x_coco'),
        ('vit_l_instance', 'vit_l_instance_16xb1_1x_coco'),
        ('vit_l_lsj_lvis', 'vit_l_lsj_16xb1_16e_lvis'),
        ('vit_l_lvis_instance', 'vit_l_instance_lsj_16xb1_16e_lvis'),
    ],
)
def test_published_detectors_have_our_tensors(name, config):
    path = mmext.config_path(f'co_dino/co_dino_5scale_{config}.py')
    spec = state_spec(Config.fromfile(path).to_dict()['model'])
    text = (ORACLES / f'codetr_{name}_keys.tsv').read_text()
    shapes = dict(line.split('\t')[:2] for line in text.splitlines())
    shapes = convert_codetr_state_dict(shapes, own_keys=set(spec))
    assert {key: shape for key, (shape, _) in spec.items()} == {
        key: shape for key, shape in shapes.items() if 'rope' not in key
    }


def test_published_layout_loads(config):
    """Names of the public project, its tables of rotary embeddings too."""
    model = MODELS.build(reduce_model(config.to_dict()['model']))
    state = {
        f'module.{key.replace(".dn_generator", "")}': torch.randn_like(value)
        for key, value in model.state_dict().items()
    }
    for place in ('rope_win', 'blocks.0.attn.rope'):
        for name in ('freqs_cos', 'freqs_sin'):
            state[f'module.backbone.{place}.{name}'] = torch.ones(9, 8)
    model.load_state_dict(state, strict=True)
    for key in ('backbone.patch_embed.proj.weight', 'neck.p6.1.weight'):
        assert torch.equal(model.state_dict()[key], state[f'module.{key}'])


def test_rates_are_the_recorded_ones(config):
    """Layer-wise decay, of each parameter of the published detector."""
    with torch.device('meta'):
        model = MODELS.build(config.to_dict()['model'])
    wrapper = config.optim_wrapper.to_dict()
    # A fused step needs values.
    wrapper['optimizer']['foreach'] = True
    wrapper = build_optim_wrapper(model, wrapper)
    rates = {
        id(parameter): (group['lr'], group['weight_decay'])
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    assert len(wrapper.optimizer.param_groups) == 52
    text = (ORACLES / 'codetr_vit_l_rates.tsv').read_text()
    rows = [line.split('\t') for line in text.splitlines()]
    names = {name for name, _ in model.named_parameters()}
    expected = convert_codetr_state_dict(
        {row[0]: (float(row[1]), float(row[2])) for row in rows},
        own_keys=names,
    )
    # The recorded model has a mask head as well.
    assert names <= set(expected)
    assert {
        name: pytest.approx(expected[name], rel=1e-6) for name in names
    } == {name: rates[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ('backbone', 'settings', 'text'),
    [
        (torch.nn.Identity(), dict(), 'needs a backbone with get_layer_depth'),
        (None, dict(), 'needs a backbone with get_layer_depth'),
        (vit(), dict(bias_lr_mult=2.0), 'the only key of paramwise_cfg'),
        (vit(), dict(layer_decay_rate=0.0), r'must be in \(0, 1\]'),
    ],
)
def test_decay_that_cannot_be(backbone, settings, text):
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model.backbone = backbone
    cfg = dict(
        constructor='mmext.MergedOptimWrapperConstructor',
        optimizer=dict(type='SGD', lr=1.0),
        paramwise_cfg=dict(layer_decay_rate=0.8) | settings,
    )
    with pytest.raises(ValueError, match=text):
        build_optim_wrapper(model, cfg)
