import pytest
import torch
from helpers.tiny_mae import ARCH, recorded_mask
from mmengine.model import BaseModule
from torch.testing import assert_close

from mmext.models import MAEViT
from mmext.models.mae import ARCHITECTURES
from mmext.models.mae.layers import fit_positions, resize_positions


def vit(**kwargs) -> MAEViT:
    return MAEViT(**dict(arch=ARCH, img_size=32, patch_size=8) | kwargs)


@pytest.mark.parametrize(
    ('arch', 'millions'),
    # Of timm's models of these names, without heads and positions.
    [('tiny', 5.49), ('small', 21.59), ('base', 85.65), ('large', 303.10)],
)
def test_sizes_are_the_published_ones(arch, millions):
    with torch.device('meta'):
        model = MAEViT(arch)
    count = sum(p.numel() for p in model.parameters()) / 1e6
    assert count == pytest.approx(millions, abs=0.01)
    assert model.embed_dims == ARCHITECTURES[arch[0]]['embed_dims']


@pytest.mark.parametrize(
    ('kwargs', 'text'),
    [
        (dict(arch='x'), 'arch must be one of'),
        (dict(arch={'depth': 1}), 'arch must be one of'),
        (dict(img_size=30), 'img_size must be a multiple of patch_size'),
        (dict(patch_size=(8, 8, 8)), 'patch_size must be'),
        (dict(out_type='all'), 'out_type must be one of'),
        (dict(out_type='cls_token', num_cls_tokens=0), 'num_cls_tokens'),
        (dict(out_indices=(0, 5)), r'out_indices must be in \[-2, 2\)'),
        (dict(frozen_stages=3), 'frozen_stages must be at most 2'),
        (dict(with_cp=7), 'with_cp'),
        (dict(arch=ARCH | {'num_heads': 5}), 'num_heads must divide 32'),
        (dict(arch=ARCH | {'embed_dims': 30}), 'channels must be a multiple'),
    ],
)
def test_wrong_arguments(kwargs, text):
    with pytest.raises(ValueError, match=text):
        vit(**kwargs)


@pytest.mark.parametrize(
    ('kwargs', 'shapes'),
    [
        (dict(), [(2, 17, 32)]),
        (dict(num_cls_tokens=3), [(2, 19, 32)]),
        (dict(num_cls_tokens=0), [(2, 16, 32)]),
        (dict(out_type='cls_token'), [(2, 32)]),
        (dict(out_type='avg_featmap', final_norm=False), [(2, 32)]),
        (dict(out_type='featmap', out_indices=[-2, -1]), [(2, 32, 4, 4)] * 2),
        (dict(out_type='featmap', patch_size=(4, 8)), [(2, 32, 8, 4)]),
    ],
)
def test_outputs_and_no_unused_parameter(kwargs, shapes):
    model = vit(**kwargs)
    outputs = model(torch.randn(2, 3, 32, 32))
    assert [tuple(output.shape) for output in outputs] == shapes
    # Not the sum, which a norm holds at a constant.
    sum((output**3).sum() for output in outputs).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_featmap_has_patches_where_they_are():
    images = torch.randn(1, 3, 32, 32)
    changed = images.clone()
    changed[:, :, 8:16, 24:] += 1
    model = vit(out_type='raw')
    a, b = (
        model.patch_embed(x).unflatten(1, (4, 4)) for x in (images, changed)
    )
    assert (a != b).any(-1).nonzero().tolist() == [[0, 1, 3]]


def test_layers_behind_the_last_index_are_not_made():
    model = vit(out_indices=0, out_type='featmap')
    assert len(model.layers) == 1
    assert not hasattr(model, 'ln1')
    full = vit(out_indices=(0, 1), out_type='featmap')
    missing, unexpected = model.load_state_dict(full.state_dict(), False)
    assert not missing
    assert all(k.startswith(('layers.1.', 'ln1.')) for k in unexpected)
    images = torch.randn(2, 3, 32, 32)
    assert_close(model(images)[0], full(images)[0])


def test_masked_tokens_do_not_matter():
    model, mask = vit(), recorded_mask()
    images = torch.randn(3, 3, 32, 32)
    spoilt = images.unflatten(2, (4, 8)).unflatten(4, (4, 8)).clone()
    for index, patches in enumerate(mask.masked):
        for patch in patches.tolist():
            spoilt[index, :, patch // 4, :, patch % 4] = 1e6
    spoilt = spoilt.flatten(4, 5).flatten(2, 3)
    assert_close(model(images, mask), model(spoilt, mask), rtol=0, atol=0)


def test_mask_must_be_one():
    model = vit()
    images = torch.randn(3, 3, 32, 32)
    assert_close(model(images, False)[0], model(images)[0], rtol=0, atol=0)
    with pytest.raises(TypeError, match=r'let MAE\.draw_mask draw one'):
        model(images, True)
    with pytest.raises(ValueError, match='to be masked, got'):
        model(images[..., :16], recorded_mask())
    with pytest.raises(ValueError, match='images must be a multiple'):
        model(images[..., :30])


def test_loads_positions_of_another_size():
    small, large = vit(), vit(img_size=(64, 48))
    large.load_state_dict(small.state_dict())
    assert large.pos_embed.shape == (1, 1 + 8 * 6, 32)
    expected = resize_positions(small.pos_embed, (4, 4), (8, 6))
    assert_close(large.pos_embed, expected)
    assert small.pos_embed.shape == (1, 17, 32)


def test_loads_without_class_token():
    state = vit().state_dict()
    model = vit(num_cls_tokens=0)
    _, unexpected = model.load_state_dict(state, strict=False)
    assert unexpected == ['cls_token']
    assert_close(model.pos_embed, state['pos_embed'][:, 1:])


@pytest.mark.parametrize(('length', 'tokens'), [(19, 1), (16, 1), (17, 4)])
def test_positions_that_do_not_fit(length, tokens):
    with pytest.raises(ValueError, match='build the model with the img_size'):
        fit_positions(torch.zeros(1, length, 8), (6, 6), tokens)


def test_frozen():
    model = vit(frozen_stages=2).train()
    assert not any(p.requires_grad for p in model.parameters())
    assert not model.ln1.training
    model = vit(frozen_stages=1, drop_path_rate=0.5).train()
    assert {
        n.split('.')[0] for n, p in model.named_parameters() if p.requires_grad
    } == {
        'layers',
        'ln1',
    }
    assert [layer.training for layer in model.layers] == [False, True]


def test_layer_depths():
    model = vit()
    assert isinstance(model, BaseModule)
    names = ['backbone.cls_token', 'backbone.layers.1.ln1.bias', 'head.a']
    depths = [model.get_layer_depth(name, 'backbone.') for name in names]
    assert depths == [(0, 4), (2, 4), (3, 4)]
    assert model.get_layer_depth('ln1.weight') == (3, 4)
