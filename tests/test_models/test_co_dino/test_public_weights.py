"""Public weights and files: against key lists and a Swin of our own."""

from argparse import Namespace
from ast import literal_eval
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from helpers.reduce_config import state_spec
from mmdet.models import SwinTransformer
from mmdet.registry import MODELS
from mmengine import Config
from reference import swin_v1

import mmext
from mmext.models.co_dino import (
    convert_checkpoint_file,
    convert_codetr_state_dict,
)

ORACLES = Path(__file__).parents[2] / 'oracles'
LABEL = 'query_head.label_embedding.weight'
OUR_LABEL = 'query_head.dn_generator.label_embedding.weight'


@pytest.mark.parametrize('name', ['r50', 'swin_l'])
def test_our_models_have_the_tensors_of_the_published_ones(name):
    path = mmext.config_path(f'_base_/models/co_dino_5scale_{name}.py')
    spec = state_spec(Config.fromfile(path).to_dict()['model'])
    file = ORACLES / f'codetr_{name.replace("_", "")}_keys.tsv'
    rows = (line.split('\t') for line in file.read_text().splitlines())
    assert spec == {key: (shape, dtype) for key, shape, dtype in rows}


def listed_keys(name: str) -> list[str]:
    """Keys of a published model, in order."""
    text = (ORACLES / f'codetr_{name}_keys.tsv').read_text()
    return [line.split('\t')[0] for line in text.splitlines()]


def test_loads_the_layout_of_the_published_co_deformable_detr():
    """Names and shapes of the original project, random numbers, strictly."""
    path = mmext.config_path('_base_/models/co_deformable_detr_r50.py')
    cfg = Config.fromfile(path).to_dict()['model']
    file = ORACLES / 'codetr_deformable_r50_keys.tsv'
    rows = (line.split('\t') for line in file.read_text().splitlines())
    state = {key: torch.rand(literal_eval(shape)) for key, shape in rows}
    converted = convert_codetr_state_dict(state)
    assert state.keys() - converted.keys() == {
        'query_head.query_embedding.weight'
    }
    assert {key: str(tuple(v.shape)) for key, v in converted.items()} == {
        key: shape for key, (shape, _) in state_spec(cfg).items()
    }
    with torch.device('meta'):
        model = MODELS.build(cfg)
    model.load_state_dict(state, strict=True, assign=True)
    for key, value in model.state_dict().items():
        assert torch.equal(value, converted[key]), key


@pytest.mark.parametrize('size', [(32, 32), (64, 32)])
def test_matches_original_swin(size):
    depths, num_heads, window = [2, 2], [2, 4], 4
    state = swin_v1.random_state(8, depths, num_heads, window)
    image = torch.randn(3, *size)
    expected = swin_v1.forward(
        state, image, depths=depths, num_heads=num_heads, window=window
    )
    model = SwinTransformer(
        embed_dims=8,
        depths=depths,
        num_heads=num_heads,
        window_size=window,
        out_indices=(0, 1),
        strides=(4, 2),
        drop_path_rate=0.0,
    )
    model.eval()
    converted = convert_codetr_state_dict(
        {f'backbone.{key}': value for key, value in state.items()}
    )
    model.load_state_dict(
        {key.removeprefix('backbone.'): v for key, v in converted.items()},
        strict=True,
    )
    with torch.no_grad():
        actual = model(image[None])
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one[0], other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', ['r50', 'swinl'])
def test_keeps_our_names(name):
    state = {key: torch.ones(()) for key in listed_keys(name)}
    converted = convert_codetr_state_dict(state)
    assert list(converted) == list(state)
    assert all(converted[key] is state[key] for key in state)


def to_original(key: str) -> str:
    """Our name of a Swin-L tensor in the original project's names."""
    pairs = [
        ('query_head.dn_generator.', 'query_head.'),
        ('patch_embed.projection.', 'patch_embed.proj.'),
        ('.attn.w_msa.', '.attn.'),
        ('.ffn.layers.0.0.', '.mlp.fc1.'),
        ('.ffn.layers.1.', '.mlp.fc2.'),
    ]
    if key.startswith('backbone.'):
        key = key.replace('.stages.', '.layers.')
    for here, there in pairs:
        if key.startswith(('backbone.', 'query_head.dn_')):
            key = key.replace(here, there)
    return key


@pytest.mark.parametrize('prefix', ['', 'module.'])
def test_renames_every_key_of_the_original_swin_l(prefix):
    keys = listed_keys('swinl')
    state = {prefix + to_original(key): torch.ones(4) for key in keys}
    assert len(state.keys() & set(keys)) < len(keys)
    assert list(convert_codetr_state_dict(state)) == keys


def test_reads_an_averaged_model():
    state = {
        'steps': torch.tensor(3),
        f'module.{LABEL}': torch.ones(2),
    }
    assert list(convert_codetr_state_dict(state)) == [OUR_LABEL]


def test_keeps_steps_and_module_of_another_kind():
    state = {'steps': torch.ones(()), 'module.x': torch.ones(()), 'y': None}
    assert convert_codetr_state_dict(state) == state
    assert convert_codetr_state_dict({}) == {}


@pytest.mark.parametrize(
    'key',
    [
        'backbone.layers.0.ln1.weight',
        'backbone.layers.0.blocks.0.attn_mask',
        'backbone.layer1.0.conv1.weight',
        'backbone.patch_embed.projection.weight',
        'backbone.blocks.0.attn.qkv.weight',
        'neck.layers.0.blocks.0.attn.qkv.weight',
    ],
)
def test_leaves_other_names_alone(key):
    assert list(convert_codetr_state_dict({key: torch.ones(())})) == [key]


def test_leaves_out_what_the_config_has():
    key = 'query_head.loss_cls.fed_loss_weight'
    assert convert_codetr_state_dict({key: torch.ones(())}) == {}


def test_never_renames_a_key_of_the_model():
    key = 'backbone.layers.0.downsample.reduction.weight'
    state = {key: torch.arange(16.0).view(2, 8)}
    kept = convert_codetr_state_dict(state, own_keys={key})
    assert kept[key] is state[key]
    assert list(convert_codetr_state_dict(state)) != [key]


def test_rejects_two_keys_for_one_tensor():
    state = {LABEL: torch.ones(1), OUR_LABEL: torch.ones(1)}
    with pytest.raises(ValueError, match=r'every tensor once, got .*label'):
        convert_codetr_state_dict(state)


def test_rejects_a_broken_merging_layer():
    state = {'backbone.layers.0.downsample.norm.bias': torch.ones(6)}
    with pytest.raises(ValueError, match='multiple of 4'):
        convert_codetr_state_dict(state)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A checkpoint of the original project, with averaged weights."""
    path = tmp_path / 'public.pth'
    content = {
        'meta': {'epoch': 12},
        'state_dict': {LABEL: torch.ones(2), 'other': torch.ones(1)},
        'ema_state_dict': {
            'steps': torch.tensor(7),
            f'module.{LABEL}': torch.zeros(2),
        },
        'optimizer': {'state': {}},
    }
    torch.save(content, path)
    return path


def test_checkpoint(checkpoint, tmp_path):
    target = tmp_path / 'ours.pth'
    assert convert_checkpoint_file(checkpoint, target) == (2, 1)
    content = torch.load(target, weights_only=True)
    assert list(content) == ['meta', 'state_dict']
    assert content['meta'] == {'epoch': 12}
    assert list(content['state_dict']) == [OUR_LABEL, 'other']
    assert content['state_dict'][OUR_LABEL].tolist() == [1, 1]


def test_averaged_weights(checkpoint, tmp_path):
    target = tmp_path / 'ours.pth'
    assert convert_checkpoint_file(checkpoint, target, ema=True) == (1, 1)
    state = torch.load(target, weights_only=True)['state_dict']
    assert state[OUR_LABEL].tolist() == [0, 0]


def test_bare_state_dict(tmp_path):
    source, target = tmp_path / 'bare.pth', tmp_path / 'ours.pth'
    torch.save({LABEL: torch.ones(2)}, source)
    assert convert_checkpoint_file(source, target) == (1, 1)
    assert torch.load(target, weights_only=True)['meta'] == {}


def test_more_than_tensors_needs_trust(tmp_path):
    source, target = tmp_path / 'odd.pth', tmp_path / 'ours.pth'
    meta = {'args': Namespace(a=1), 'scale': Fraction(1, 2)}
    torch.save({'meta': meta, 'state_dict': {'a': torch.ones(1)}}, source)
    with pytest.raises(ValueError, match=r'holds fractions\.Frac'):
        convert_checkpoint_file(source, target)
    assert not target.exists()
    assert convert_checkpoint_file(source, target, trust=True) == (1, 0)


@pytest.mark.parametrize(
    ('content', 'ema', 'message'),
    [
        ([1], False, 'must hold a dict, got list'),
        ({'a': 1}, False, r"must hold a state_dict, got keys \['a'\]"),
        ({'state_dict': {}}, True, 'must hold a ema_state_dict, got keys'),
    ],
)
def test_rejects_what_is_no_checkpoint(content, ema, message, tmp_path):
    source, target = tmp_path / 'odd.pth', tmp_path / 'ours.pth'
    with pytest.raises(FileNotFoundError, match='source must be a file, got'):
        convert_checkpoint_file(source, target)
    torch.save(content, source)
    with pytest.raises(ValueError, match=message):
        convert_checkpoint_file(source, target, ema=ema)
    assert not target.exists()


def test_replaces_only_when_asked(checkpoint, tmp_path):
    target = tmp_path / 'ours.pth'
    target.write_text('precious')
    with pytest.raises(FileExistsError, match='target must not exist, got'):
        convert_checkpoint_file(checkpoint, target)
    assert target.read_text() == 'precious'
    convert_checkpoint_file(checkpoint, target, overwrite=True)
    assert torch.load(target, weights_only=True)['state_dict']
