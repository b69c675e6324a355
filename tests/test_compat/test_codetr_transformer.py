"""Translation of mmcv's nested layer dicts."""

import pytest
from reference.codetr_port_config import transformer

from mmext.compat._codetr_transformer import translate_transformer
from mmext.compat._section import Section

LAYER = {
    'num_heads': 8,
    'num_points': 4,
    'feedforward_channels': 2048,
    'dropout': 0.0,
}


def translate(cfg: dict, **kwargs) -> dict:
    """Translate with the numbers of the published models."""
    settings = {'num_queries': 900, 'num_co_heads': 2, 'with_co_queries': True}
    return translate_transformer(
        Section(cfg, 'transformer'), **{**settings, **kwargs}
    )


def layer_of(cfg: dict, part: str) -> dict:
    """The layer dict of encoder or decoder."""
    return cfg[part]['transformerlayers']


def test_published_transformer():
    assert translate(transformer()) == {
        'type': 'mmext.CoDINOTransformer',
        'embed_dims': 256,
        'num_feature_levels': 5,
        'with_coord_feat': False,
        'encoder': {'num_layers': 6, 'with_cp': 4, **LAYER},
        'decoder': {'num_layers': 6, 'with_cp': False, **LAYER},
    }


@pytest.mark.parametrize(
    ('with_cp', 'expected'), [(-1, 0), (0, 0), (False, 0), (True, 1), (6, 6)]
)
def test_with_cp_counts_layers(with_cp, expected):
    encoder = translate(transformer(with_cp))['encoder']
    assert encoder['with_cp'] == expected
    assert not isinstance(encoder['with_cp'], bool)


def test_missing_with_cp_is_none():
    cfg = transformer()
    del cfg['encoder']['with_cp']
    assert translate(cfg)['encoder']['with_cp'] == 0


def test_one_dict_per_layer():
    cfg = transformer()
    for part in ('encoder', 'decoder'):
        cfg[part]['transformerlayers'] = [layer_of(cfg, part)] * 6
    assert translate(cfg) == translate(transformer())


def test_new_keys_mean_the_same():
    """The attention and FFN keys that replaced the deprecated ones."""
    cfg = transformer()
    for part in ('encoder', 'decoder'):
        layer = layer_of(cfg, part)
        layer['ffn_cfgs'] = {
            'type': 'FFN',
            'embed_dims': 256,
            'feedforward_channels': layer.pop('feedforward_channels'),
            'ffn_drop': layer.pop('ffn_dropout'),
            'num_fcs': 2,
            'act_cfg': {'type': 'ReLU', 'inplace': True},
        }
    attention = layer_of(cfg, 'decoder')['attn_cfgs'][0]
    del attention['dropout']
    attention.update(
        attn_drop=0.0, proj_drop=0.0, dropout_layer={'type': 'Dropout'}
    )
    attention['dropout_layer']['drop_prob'] = 0.0
    assert translate(cfg) == translate(transformer())


def test_one_dropout_for_all():
    cfg = transformer()
    for part in ('encoder', 'decoder'):
        layer_of(cfg, part)['ffn_dropout'] = 0.1
    layer_of(cfg, 'encoder')['attn_cfgs']['dropout'] = 0.1
    for attention in layer_of(cfg, 'decoder')['attn_cfgs']:
        attention['dropout'] = 0.1
    result = translate(cfg)
    assert result['encoder']['dropout'] == 0.1
    assert result['decoder']['dropout'] == 0.1


def test_im2col_step_changes_nothing():
    cfg = transformer()
    layer_of(cfg, 'encoder')['attn_cfgs']['im2col_step'] = 32
    assert translate(cfg) == translate(transformer())


@pytest.mark.parametrize(
    ('path', 'value', 'message'),
    [
        ('type', 'Transformer', r"transformer\.type must be 'CoDinoTrans"),
        ('num_co_heads', 3, r'num_co_heads must be 2, got 3; it is the numb'),
        ('two_stage_num_proposals', 300, 'must be 900, got 300; it repeats'),
        ('with_pos_coord', False, 'with_pos_coord must be True, got False'),
        ('mixed_selection', False, 'mixed_selection must be True, got False'),
        ('as_two_stage', False, 'as_two_stage must be True, got False'),
        ('init_cfg', {}, r'transformer\.init_cfg must be None'),
        ('num_feature_levels', 4, 'num_feature_levels must be the same'),
        ('act_cfg', {}, r'transformer must have only keys .* got act_cfg'),
        ('encoder.type', 'Encoder', r'encoder\.type must be'),
        ('encoder.with_cp', 7, 'with_cp must be a number of layers up to 6'),
        ('encoder.with_cp', 'all', "with_cp must be a number .* got 'all'"),
        ('encoder.post_norm_cfg', {'type': 'BN'}, 'post_norm_cfg must be'),
        ('encoder.foo', 1, r'transformer\.encoder must have only .* foo=1'),
        ('decoder.type', 'Decoder', r'decoder\.type must be'),
        ('decoder.return_intermediate', False, 'must be True, got False; ev'),
        ('decoder.foo', 1, r'transformer\.decoder must have only .* foo=1'),
    ],
)
def test_rejects(path, value, message):
    cfg = transformer()
    inner = cfg
    *parents, last = path.split('.')
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    with pytest.raises(ValueError, match=message):
        translate(cfg)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'type': 'Layer'}, r'transformerlayers\.type must be'),
        ({'operation_order': ('norm', 'ffn')}, 'operation_order must be'),
        ({'batch_first': True}, 'batch_first must be False, got True'),
        ({'norm_cfg': {'type': 'BN'}}, r'norm_cfg must be .* got .*BN'),
        ({'act_cfg': {'type': 'GELU'}}, r'act_cfg must be .* got .*GELU'),
        ({'ffn_num_fcs': 3}, r'num_fcs must be 2; mmext has no other kind'),
        ({'ffn_dropout': 0.1}, r'dropout .* must be the same everywhere'),
        ({'init_cfg': {}}, r'transformerlayers\.init_cfg must be None'),
        ({'attn_cfgs': []}, r'attn_cfgs must hold 1 dicts .* got 0'),
        ({'foo': 1}, 'transformerlayers must have only .* foo=1'),
        ({'ffn_cfgs': {'add_identity': False}}, 'add_identity must be True'),
        ({'ffn_cfgs': {'foo': 1}}, r'ffn_cfgs must have only .* foo=1'),
        ({'ffn_cfgs': {'embed_dims': 8}}, 'embed_dims .* must be the same'),
    ],
)
def test_rejects_layer(change, message):
    cfg = transformer()
    layer_of(cfg, 'encoder').update(change)
    with pytest.raises(ValueError, match=message):
        translate(cfg)


@pytest.mark.parametrize(
    ('index', 'change', 'message'),
    [
        (0, {'type': 'Attention'}, r'attn_cfgs\[0\]\.type must be'),
        (0, {'num_heads': 4}, 'num_heads .* must be the same everywhere'),
        (0, {'dropout': 0.2}, 'dropout .* must be the same everywhere'),
        (0, {'proj_drop': 0.2}, 'proj_drop must be 0 or 0.0, got 0.2'),
        (0, {'batch_first': True}, 'batch_first must be False, got True'),
        (0, {'bias': False}, r'attn_cfgs\[0\] must have only .* bias=False'),
        (1, {'type': 'Attention'}, r'attn_cfgs\[1\]\.type must be'),
        (1, {'num_levels': 4}, 'num_feature_levels must be the same'),
        (1, {'embed_dims': 128}, 'embed_dims .* must be the same everywhere'),
        (1, {'value_proj_ratio': 2.0}, 'value_proj_ratio must be 1 or 1.0'),
        (1, {'norm_cfg': {}}, r'attn_cfgs\[1\]\.norm_cfg must be None'),
        (1, {'foo': 1}, r'attn_cfgs\[1\] must have only .* foo=1'),
    ],
)
def test_rejects_attention(index, change, message):
    cfg = transformer()
    layer_of(cfg, 'decoder')['attn_cfgs'][index].update(change)
    with pytest.raises(ValueError, match=message):
        translate(cfg)


def test_missing_dropout_is_that_of_mmcv():
    """Deformable attention without the key drops a tenth."""
    cfg = transformer()
    del layer_of(cfg, 'encoder')['attn_cfgs']['dropout']
    with pytest.raises(ValueError, match=r'attn_cfgs\[0\]\.dropout=0\.1'):
        translate(cfg)


def test_rejects_dropouts_that_one_number_cannot_say():
    cfg = transformer()
    attention = layer_of(cfg, 'decoder')['attn_cfgs'][0]
    del attention['dropout']
    attention.update(attn_drop=0.1, dropout_layer=None)
    with pytest.raises(ValueError, match=r'attn_drop=0\.1, .*drop_prob=0\.0'):
        translate(cfg)


@pytest.mark.parametrize('layers', [[], [1] * 5])
def test_rejects_another_number_of_layers(layers):
    cfg = transformer()
    cfg['encoder']['transformerlayers'] = layers
    with pytest.raises(ValueError, match='must hold num_layers=6 dicts'):
        translate(cfg)


def test_rejects_layers_that_differ():
    cfg = transformer()
    layer = layer_of(cfg, 'encoder')
    other = {**layer, 'feedforward_channels': 1024}
    cfg['encoder']['transformerlayers'] = [layer] * 5 + [other]
    with pytest.raises(ValueError, match='transformerlayers must be the same'):
        translate(cfg)


@pytest.mark.parametrize('part', ['encoder', 'decoder'])
def test_rejects_what_is_no_dict(part):
    cfg = transformer()
    cfg[part] = 6
    with pytest.raises(TypeError, match=f'{part} must be a dict, got 6'):
        translate(cfg)


def test_rejects_ffn_cfgs_that_are_no_dict():
    cfg = transformer()
    layer_of(cfg, 'encoder')['ffn_cfgs'] = [1]
    with pytest.raises(TypeError, match=r'ffn_cfgs must be a dict, got \[1\]'):
        translate(cfg)
