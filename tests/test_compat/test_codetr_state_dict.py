"""Checkpoint names: against key lists and a Swin of our own writing."""

from pathlib import Path

import pytest
import torch
from mmdet.models import SwinTransformer
from reference import swin_v1

from mmext.compat.codetr_state_dict import (
    convert_codetr_state_dict,
    reorder_patch_merging,
)

ORACLES = Path(__file__).parents[1] / 'oracles'
LABEL = 'query_head.label_embedding.weight'
OUR_LABEL = 'query_head.dn_generator.label_embedding.weight'


def listed_keys(name: str) -> list[str]:
    """Keys of a published model, in order."""
    text = (ORACLES / f'codetr_{name}_keys.tsv').read_text()
    return [line.split('\t')[0] for line in text.splitlines()]


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


def test_reordering_matters_to_the_swin_test():
    """The oracle would notice a merging layer that is left as it was."""
    weight = torch.arange(16.0).view(1, 16)
    assert not torch.equal(reorder_patch_merging(weight), weight)


def test_reorders_norm_as_reduction():
    weight = torch.randn(6, 12)
    for row, reordered in zip(weight, reorder_patch_merging(weight)):
        assert torch.equal(reorder_patch_merging(row), reordered)


def test_rejects_an_axis_that_is_no_patch():
    with pytest.raises(ValueError, match=r'multiple of 4, got shape \(3, 6\)'):
        reorder_patch_merging(torch.zeros(3, 6))


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
        'query_head.loss_cls.fed_loss_weight',
    ],
)
def test_leaves_other_names_alone(key):
    assert list(convert_codetr_state_dict({key: torch.ones(())})) == [key]


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


def test_does_not_change_inputs():
    key = 'backbone.layers.0.downsample.norm.bias'
    state = {key: torch.arange(8.0), LABEL: torch.ones(2)}
    convert_codetr_state_dict(state)
    assert list(state) == [key, LABEL]
    assert state[key].tolist() == list(range(8))
