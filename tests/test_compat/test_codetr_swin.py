"""Backbone translation."""

import pytest
import torch
from mmdet.models import SwinTransformer
from mmdet.registry import MODELS as MMDET_MODELS
from reference import swin_v1

from mmext.compat import convert_codetr_state_dict
from mmext.compat._codetr_swin import translate_backbone

SMALL = {
    'type': 'SwinTransformerV1',
    'embed_dim': 8,
    'depths': [2, 1, 1, 1],
    'num_heads': [1, 2, 4, 8],
    'window_size': 4,
    'use_checkpoint': True,
    'mlp_ratio': 4.0,
}


def test_prefixes_a_backbone_of_mmdet():
    resnet = {'type': 'ResNet', 'depth': 18, 'norm_cfg': {'type': 'BN'}}
    assert translate_backbone(resnet) == {**resnet, 'type': 'mmdet.ResNet'}
    assert resnet['type'] == 'ResNet'


def test_matches_original_swin():
    """Config and weights of the original give the original's maps."""
    depths, heads = SMALL['depths'], SMALL['num_heads']
    cfg = translate_backbone(SMALL)
    assert cfg.pop('with_cp') is True
    model = MMDET_MODELS.build(cfg)
    model.eval()
    state = swin_v1.random_state(8, depths, heads, 4)
    renamed = convert_codetr_state_dict(
        {f'backbone.{key}': value for key, value in state.items()}
    )
    model.load_state_dict(
        {key.removeprefix('backbone.'): v for key, v in renamed.items()}
    )
    image = torch.randn(3, 128, 128)
    expected = swin_v1.forward(
        state, image, depths=depths, num_heads=heads, window=4
    )
    with torch.no_grad():
        actual = model(image[None])
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one[0], other, rtol=1e-3, atol=1e-3)


def test_writes_defaults_that_differ():
    cfg = translate_backbone({'type': 'SwinTransformerV1'})
    assert cfg['drop_path_rate'] == 0.2
    assert isinstance(MMDET_MODELS.build(cfg), SwinTransformer)
    assert 'init_cfg' not in cfg


def test_pretrained_is_a_file_to_convert():
    cfg = translate_backbone({**SMALL, 'pretrained': 'swin.pth'})
    assert cfg['init_cfg'] == {'type': 'Pretrained', 'checkpoint': 'swin.pth'}
    assert cfg['convert_weights'] is True


def test_rejects_what_is_no_dict():
    with pytest.raises(TypeError, match=r'model\.backbone must be a dict'):
        translate_backbone('swin')


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'norm_layer': 'LN'}, "backbone must have only .* norm_layer='LN'"),
        ({'frozen_stages': 2}, r'backbone\.frozen_stages must be -1, got 2'),
        (
            {'mlp_ratio': 2.5},
            r'backbone\.mlp_ratio must be a whole .* got 2.5',
        ),
        ({'init_cfg': {}}, r'backbone\.init_cfg must be None, got \{\}; give'),
        ({'type': 'SwinV3'}, r"backbone\.type must name .* got 'SwinV3'"),
    ],
)
def test_rejects(change, message):
    with pytest.raises(ValueError, match=message):
        translate_backbone({**SMALL, **change})
