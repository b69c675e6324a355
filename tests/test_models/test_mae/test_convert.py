"""Each direction by the features of the model that is loaded."""

import pytest
import torch
from helpers.tiny_mae import ARCH, record, recorded_mask, tiny_mae
from mmseg.models.backbones import VisionTransformer
from torch.testing import assert_close

from mmext.models import MAEViT
from mmext.models.mae import (
    LAYOUTS,
    convert_mae_file,
    export_mae_state_dict,
    import_mae_state_dict,
)
from mmext.models.mae.layers import resize_positions

CLOSE = dict(rtol=1e-5, atol=1e-5)


def encoder(state, **kwargs):
    model = MAEViT(**dict(arch=ARCH, img_size=32, patch_size=8) | kwargs)
    prefix = 'backbone.'
    state = {
        k.removeprefix(prefix): v
        for k, v in state.items()
        if k.startswith(prefix)
    }
    model.load_state_dict(state)
    return model.eval()


def test_original_loss_and_gradients():
    theirs = record()['facebook']
    model = tiny_mae()
    converted = import_mae_state_dict(theirs['state_dict'])
    model.load_state_dict(converted.state_dict)
    images, mask = record()['images'], recorded_mask()
    predicted = model.neck(model.backbone(images, mask), mask)
    index = mask.masked[..., None].expand_as(predicted)
    assert_close(predicted, theirs['predicted'].gather(1, index), **CLOSE)
    loss = model.head.loss(predicted, images, mask)
    assert_close(loss, theirs['loss'], **CLOSE)
    loss.backward()
    gradients = import_mae_state_dict(theirs['gradients']).state_dict
    ours = {name: p.grad for name, p in model.named_parameters()}
    assert ours.keys() == gradients.keys()
    for name, gradient in ours.items():
        assert_close(gradient, gradients[name], **CLOSE, msg=name)


def test_from_timm():
    theirs = record()['timm']
    converted = import_mae_state_dict(theirs['state_dict'])
    model = encoder(converted.state_dict)
    assert_close(model(record()['images'])[0], theirs['features'], **CLOSE)


@pytest.mark.parametrize(
    ('host', 'layout', 'decoder'),
    [('timm', 'timm', False), ('facebook', 'original', True)],
)
def test_export_is_the_inverse(host, layout, decoder):
    """So that the host, which gave these numbers, gets its own weights."""
    theirs = record()[host]['state_dict']
    ours = import_mae_state_dict(theirs).state_dict
    back = export_mae_state_dict(ours, layout, decoder=decoder).state_dict
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize('layout', ['original', 'mmpretrain', 'mmext'])
def test_with_decoder_and_back(layout):
    ours = record()['mmpretrain']['state_dict']
    there = export_mae_state_dict(ours, layout, decoder=True)
    assert not there.left_out
    here = import_mae_state_dict(there.state_dict).state_dict
    assert here.keys() == ours.keys()
    assert all(torch.equal(here[key], ours[key]) for key in ours)


def test_backbone_of_mmpretrain_alone():
    ours = record()['mmpretrain']['state_dict']
    bare = {
        'module.' + k.removeprefix('backbone.'): v
        for k, v in ours.items()
        if k.startswith('backbone.')
    }
    bare['module.head.weight'] = torch.ones(2)
    converted = import_mae_state_dict(bare)
    assert converted.left_out == ('module.head.weight',)
    assert all(key.startswith('backbone.') for key in converted.state_dict)


@pytest.mark.parametrize('size', [32, 48])
def test_to_mmseg(size):
    ours = record()['mmpretrain']['state_dict']
    there = export_mae_state_dict(ours, 'mmseg', image_size=size)
    assert all(key.startswith('neck.') for key in there.left_out)
    host = VisionTransformer(
        img_size=size,
        patch_size=8,
        embed_dims=32,
        num_layers=2,
        num_heads=2,
        out_indices=(0, 1),
        final_norm=True,
        patch_bias=True,
        norm_cfg=dict(type='LN', eps=1e-6),
    )
    host.eval()
    host.load_state_dict(there.state_dict)
    images = torch.randn(2, 3, size, size)
    model = encoder(
        ours, img_size=size, out_type='featmap', out_indices=(0, 1)
    )
    for expected, got in zip(model(images), host(images)):
        assert_close(got, expected, **CLOSE)


def test_to_vitdet():
    """Recorded from the project's own backbone, without windows.

    Its class token has no place there, so neither here.
    """
    theirs = record()['vitdet']
    ours = import_mae_state_dict(theirs['state_dict']).state_dict
    token = torch.zeros(1, 1, 32)
    norm = {f'backbone.ln1.{k}': torch.ones(32) for k in ('weight', 'bias')}
    there = export_mae_state_dict(
        ours | norm | {'backbone.cls_token': token}, 'vitdet'
    )
    assert there.state_dict.keys() == theirs['state_dict'].keys()
    assert sorted(there.left_out) == sorted([*norm, 'backbone.cls_token'])
    assert there.initial == tuple(theirs['window0']['missing'])
    model = encoder(
        ours,
        num_cls_tokens=0,
        final_norm=False,
        img_size=32,
        out_type='featmap',
    )
    images = record()['images'].repeat(1, 1, 2, 2)
    assert_close(model(images)[0], theirs['window0']['features'], **CLOSE)


def test_positions_of_another_size():
    ours = record()['mmpretrain']['state_dict']
    there = export_mae_state_dict(
        ours, 'mmext', image_size=(64, 48), decoder=True
    ).state_dict
    expected = resize_positions(ours['backbone.pos_embed'], (4, 4), (8, 6))
    assert_close(there['backbone.pos_embed'], expected)
    assert there['neck.decoder_pos_embed'].shape == (1, 49, 24)


@pytest.mark.parametrize(
    ('kwargs', 'text'),
    [
        (dict(layout='keras'), 'layout must be one of'),
        (dict(layout='timm', decoder=True), 'decoder must be False'),
        (dict(layout='timm', image_size=30), 'image_size must be a multiple'),
    ],
)
def test_wrong_exports(kwargs, text):
    with pytest.raises(ValueError, match=text):
        export_mae_state_dict(record()['mmpretrain']['state_dict'], **kwargs)


@pytest.mark.parametrize('count', [0, 4])
def test_other_models_have_one_class_token(count):
    state = tiny_mae(num_cls_tokens=count).state_dict()
    with pytest.raises(ValueError, match=f'one class token, got {count}'):
        export_mae_state_dict(state, 'timm')
    assert export_mae_state_dict(state, 'mmext').state_dict


def test_unknown_names():
    with pytest.raises(ValueError, match=r"got \['conv1.weight'\]"):
        import_mae_state_dict({'conv1.weight': torch.ones(1)})


@pytest.mark.parametrize('layout', LAYOUTS)
def test_files(layout, tmp_path):
    source, target = tmp_path / 'mae.pth', tmp_path / 'out.pth'
    torch.save({'model': record()['facebook']['state_dict']}, source)
    result = convert_mae_file(source, target, layout)
    content = torch.load(target, weights_only=True)
    assert content[LAYOUTS[layout]].keys() == result.state_dict.keys()
    with pytest.raises(FileExistsError, match='ask to overwrite it'):
        convert_mae_file(source, target)
    with pytest.raises(FileNotFoundError, match='source must be a file'):
        convert_mae_file(tmp_path / 'none.pth', target)
