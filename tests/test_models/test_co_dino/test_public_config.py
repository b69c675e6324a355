"""Translated public configs: against recorded models and our own configs."""

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from helpers.reduce_config import state_spec
from mmdet.models import SwinTransformer
from mmdet.registry import MODELS as MMDET_MODELS
from mmengine import Config, ConfigDict
from reference import swin_v1
from reference.codetr_port_config import (
    original_model,
    port_model,
    train_cfg,
)

import mmext
from mmext.models.co_dino import (
    convert_codetr_state_dict,
    translate_codetr_config,
)

ORACLES = Path(__file__).parents[2] / 'oracles'
CONFIGS = Path(__file__).parents[3] / 'configs'
_DELETE = object()
PREPROCESSOR = {'type': 'DetDataPreprocessor', 'mean': [1.0], 'std': [2.0]}

SMALL_SWIN = {
    'type': 'SwinTransformerV1',
    'embed_dim': 8,
    'depths': [2, 1, 1, 1],
    'num_heads': [1, 2, 4, 8],
    'window_size': 4,
    'use_checkpoint': True,
    'mlp_ratio': 4.0,
}
QUERY = 'query_head.'
DN = 'query_head.dn_cfg.'
TRANSFORMER = 'query_head.transformer.'
ENCODER = 'query_head.transformer.encoder.'
DECODER = 'query_head.transformer.decoder.'
LAYER = f'{ENCODER}transformerlayers.'
ATTENTION = f'{DECODER}transformerlayers.attn_cfgs.'


def changed(path: str, value=_DELETE, model: dict | None = None) -> dict:
    """A public model section with another value at a path of keys."""
    model = port_model() if model is None else model
    inner = model
    *parents, last = [
        int(key) if key.isdigit() else key for key in path.split('.')
    ]
    for key in parents:
        inner = inner[key]
    if value is _DELETE:
        del inner[last]
    else:
        inner[last] = value
    return model


def plain(value):
    """Copy of a config: dicts for mappings, lists for tuples."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def same(first, second) -> bool:
    """Whether two configs are equal, a tuple being as good as a list."""
    return plain(first) == plain(second)


def translate_backbone(**changes) -> dict:
    """The backbone of a model with a small Swin of the original project."""
    model = {**port_model(), 'backbone': {**SMALL_SWIN, **changes}}
    return translate_codetr_config(model)['backbone']


@pytest.fixture(scope='module')
def oracle() -> dict:
    """A recorded run of the port with a very small model."""
    return torch.load(ORACLES / 'codetr_tiny.pt', weights_only=True)


def listed(name: str) -> dict[str, tuple[str, str]]:
    """Shape and dtype of every tensor of a published model."""
    text = (ORACLES / f'codetr_{name}_keys.tsv').read_text()
    rows = [line.split('\t') for line in text.splitlines()]
    return {key: (shape, dtype) for key, shape, dtype in rows}


@pytest.mark.parametrize('name', ['r50', 'swinl'])
@pytest.mark.parametrize('source', ['port', 'original', 'ours'])
def test_state_dict_matches_the_published_models(name, source):
    swin = name == 'swinl'
    if source == 'port':
        model = translate_codetr_config(port_model(swin=swin))
    elif source == 'original':
        model = translate_codetr_config(
            original_model(swin=swin), data_preprocessor=PREPROCESSOR
        )
    else:
        file = f'co_dino_5scale_{"swin_l" if swin else "r50"}.py'
        model = Config.fromfile(CONFIGS / '_base_/models' / file).model
    assert state_spec(plain(model)) == listed(name)


def test_loads_the_recorded_model(oracle):
    model = MMDET_MODELS.build(translate_codetr_config(oracle['model_cfg']))
    model.load_state_dict(oracle['state_dict'], strict=True)
    assert model.num_classes == 7
    assert model.query_head.num_queries == 40
    assert model.checkpointed_layers()['encoder'] == (0, 2)


def lone(value):
    """Lists of one dict as the dict, as our configs write single heads."""
    if isinstance(value, dict):
        return {
            key: lone(
                item[0]
                if key in ('roi_head', 'bbox_head') and isinstance(item, list)
                else item
            )
            for key, item in value.items()
            if key != 'debug'
        }
    return [lone(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ('lsj', 'swin', 'file'),
    [
        (False, False, 'co_dino_5scale_r50'),
        (True, False, 'co_dino_5scale_r50_lsj'),
        (False, True, 'co_dino_5scale_swin_l'),
    ],
)
def test_equals_our_config(lsj, swin, file):
    ours = plain(Config.fromfile(CONFIGS / f'_base_/models/{file}.py').model)
    port = lone(translate_codetr_config(port_model(swin=swin, lsj=lsj)))
    for key in ('rpn_head', 'roi_head', 'bbox_head', 'train_cfg', 'test_cfg'):
        assert same(port[key], ours[key]), key
    encoder = ours['query_head']['transformer']['encoder']
    assert encoder['with_cp'] is True or encoder['with_cp'] == 4
    encoder['with_cp'] = 6 if swin else 4
    assert same(port['query_head'], ours['query_head'])
    assert same(port['neck'], ours['neck'])
    for key, value in port['backbone'].items():
        assert same(value, ours['backbone'][key]), key


@pytest.mark.parametrize(
    'norm',
    [
        {'type': 'BN', 'requires_grad': True},
        {'type': 'SyncBN', 'requires_grad': False},
    ],
)
def test_other_norms_stay(norm):
    model = port_model()
    model['backbone']['norm_cfg'] = norm
    assert translate_codetr_config(model)['backbone']['norm_cfg'] == norm


@pytest.mark.parametrize('swin', [False, True])
def test_both_projects_give_one_model(swin):
    port = translate_codetr_config(port_model(swin=swin))
    original = translate_codetr_config(
        original_model(swin=swin), data_preprocessor=PREPROCESSOR
    )
    for key in port.keys() - {'backbone', 'data_preprocessor'}:
        assert same(port[key], original[key]), key
    for key, value in original['backbone'].items():
        # The size only matters to absolute position embeddings.
        if key != 'pretrain_img_size':
            assert same(value, port['backbone'].get(key, value)), key


def test_does_not_change_inputs(oracle):
    for source in (oracle['model_cfg'], port_model(lsj=True)):
        before = copy.deepcopy(source)
        result = translate_codetr_config(source)
        result['backbone']['out_indices'] = None
        result['query_head']['dn_cfg']['group_cfg'].clear()
        result['train_cfg']['rpn_head']['assigner'].clear()
        result['data_preprocessor']['mean'].clear()
        assert source == before


def test_takes_a_config_dict():
    plain = port_model()
    assert translate_codetr_config(ConfigDict(plain)) == (
        translate_codetr_config(plain)
    )


@pytest.mark.parametrize(
    ('flags', 'policy'),
    [
        ({'use_lsj': True}, 'valid'),
        ({'use_lsj': False}, 'valid'),
        ({}, 'valid'),
        ({'with_attn_mask': True}, 'valid'),
        ({'with_attn_mask': False}, 'canvas'),
    ],
)
def test_mask_policy(flags, policy):
    model = port_model()
    del model['use_lsj']
    result = translate_codetr_config({**model, **flags})
    assert result['mask_policy'] == policy


def test_only_a_query_head():
    model = port_model()
    for key in ('rpn_head', 'roi_head', 'bbox_head'):
        del model[key]
    model['train_cfg'] = model['train_cfg'][:1]
    model['test_cfg'] = model['test_cfg'][:1]
    model['with_pos_coord'] = False
    model['query_head']['transformer'].update(
        with_pos_coord=False, num_co_heads=0
    )
    result = translate_codetr_config(model)
    assert not {'rpn_head', 'roi_head', 'bbox_head'} & set(result)
    assert result['with_co_queries'] is False
    assert list(result['train_cfg']) == ['query_head']


def test_two_heads_of_each_kind():
    model = port_model()
    model['roi_head'] *= 2
    model['bbox_head'] *= 2
    for key in ('train_cfg', 'test_cfg'):
        first, second, third = model[key]
        rcnn = {**second['rcnn'], 'max_per_img': 7}
        if key == 'train_cfg':
            rcnn = {**second['rcnn'], 'pos_weight': 7}
        model[key] = [first, second, {'rcnn': rcnn}, third, third]
    model['query_head']['transformer']['num_co_heads'] = 4
    result = translate_codetr_config(model)
    assert len(result['roi_head']) == len(result['bbox_head']) == 2
    weights = [each['pos_weight'] for each in result['train_cfg']['roi_head']]
    assert weights == [-1, 7]
    counts = [each['max_per_img'] for each in result['test_cfg']['roi_head']]
    assert counts == [100, 7]


def test_pretrained_none_is_no_weights():
    model = port_model()
    model['pretrained'] = [None, None]
    assert 'pretrained' not in translate_codetr_config(model)


@pytest.mark.parametrize('model', [None, [1], 'config.py'])
def test_rejects_what_is_no_dict(model):
    with pytest.raises(TypeError, match='model must be a dict, got'):
        translate_codetr_config(model)


def test_settings_by_head():
    cfg = train_cfg()
    settings = translate_codetr_config(port_model())['train_cfg']
    assert set(settings) == {
        'query_head',
        'rpn_head',
        'rpn_proposal',
        'roi_head',
        'bbox_head',
    }
    assert settings['rpn_proposal'] == cfg[1]['rpn_proposal']
    tested = translate_codetr_config(port_model())['test_cfg']
    assert set(tested) == {'query_head', 'rpn_head', 'roi_head', 'bbox_head'}
    assert tested['query_head']['max_per_img'] == 300


@pytest.mark.parametrize('cfg', [None, [], [None, None]])
def test_no_settings(cfg):
    model = translate_codetr_config(changed('train_cfg', cfg))
    assert model['train_cfg'] == {'roi_head': [None], 'bbox_head': [None]}


def only_heads(*kinds: str) -> dict:
    """A model with these co-heads."""
    model = port_model()
    for key in {'rpn_head', 'roi_head', 'bbox_head'} - set(kinds):
        del model[key]
    count = len({'roi_head', 'bbox_head'} & set(kinds))
    model['query_head']['transformer']['num_co_heads'] = count
    return model


def test_one_stage_only():
    model = only_heads('bbox_head')
    for key in ('train_cfg', 'test_cfg'):
        del model[key][1]
    result = translate_codetr_config(model)
    full = translate_codetr_config(port_model())
    for key in ('train_cfg', 'test_cfg'):
        assert set(result[key]) == {'query_head', 'bbox_head'}
        assert result[key]['bbox_head'] == full[key]['bbox_head']


def test_rpn_only():
    model = only_heads('rpn_head')
    rpn = model['train_cfg'][1]['rpn']
    model.update(train_cfg=[None, {'rpn': rpn}], test_cfg=None)
    result = translate_codetr_config(model)
    assert list(result['train_cfg']) == ['rpn_head']


def test_rejects_an_rpn_in_the_slot_of_atss():
    with pytest.raises(ValueError, match='a slot of its own for the RPN'):
        translate_codetr_config(only_heads('rpn_head', 'bbox_head'))


def test_assigner_of_mmdet_2():
    old = original_model()['train_cfg'][0]
    model = changed('train_cfg.0', old)
    assert translate_codetr_config(model) == (
        translate_codetr_config(port_model())
    )
    assert old == original_model()['train_cfg'][0]


def test_query_head_of_the_port():
    model = port_model()
    del model['query_head']['positional_encoding']
    del model['query_head']['num_query']
    head = translate_codetr_config(model)['query_head']
    assert head['num_queries'] == 900
    assert head['max_co_queries'] == 300
    assert 'temperature' not in head['positional_encoding']
    assert head['sync_cls_avg_factor'] is True
    assert 'num_classes' not in head


@pytest.mark.parametrize('value', [True, False])
def test_keeps_sync_cls_avg_factor(value):
    model = changed('query_head.sync_cls_avg_factor', value)
    head = translate_codetr_config(model)['query_head']
    assert head['sync_cls_avg_factor'] is value


def test_filled_dn_cfg_must_repeat_the_head():
    model = port_model()
    model['query_head']['dn_cfg'].update(
        num_classes=80, num_matching_queries=900, embed_dims=256
    )
    assert translate_codetr_config(model) == (
        translate_codetr_config(port_model())
    )


def test_co_heads():
    model = translate_codetr_config(port_model(num_classes=3))
    (roi,), (atss,) = model['roi_head'], model['bbox_head']
    assert model['num_classes'] == 3
    assert model['rpn_head']['loss_bbox'] == {
        'type': 'mmdet.L1Loss',
        'loss_weight': 12.0,
    }
    assert roi['bbox_roi_extractor']['roi_layer']['type'] == 'RoIAlign'
    assert roi['bbox_head']['type'] == 'mmdet.Shared2FCBBoxHead'
    assert atss['loss_cls']['type'] == 'mmdet.FocalLoss'
    assert 'num_classes' not in {**atss, **roi['bbox_head']}


def test_settings_in_a_head_may_repeat_the_list():
    model = port_model()
    model['rpn_head']['train_cfg'] = model['train_cfg'][1]['rpn']
    model['bbox_head'][0]['test_cfg'] = plain(model['test_cfg'][2])
    assert translate_codetr_config(model) == (
        translate_codetr_config(port_model())
    )


def test_published_transformer():
    layer = {
        'num_layers': 6,
        'num_heads': 8,
        'num_points': 4,
        'feedforward_channels': 2048,
        'dropout': 0.0,
    }
    model = translate_codetr_config(port_model())
    assert model['query_head']['transformer'] == {
        'type': 'mmext.CoDINOTransformer',
        'embed_dims': 256,
        'num_feature_levels': 5,
        'with_coord_feat': False,
        'encoder': {'with_cp': 4, **layer},
        'decoder': {'with_cp': False, **layer},
    }


@pytest.mark.parametrize(
    ('with_cp', 'expected'),
    [(-1, 0), (0, 0), (False, 0), (True, 1), (6, 6), (_DELETE, 0)],
)
def test_with_cp_counts_layers(with_cp, expected):
    model = translate_codetr_config(changed(f'{ENCODER}with_cp', with_cp))
    count = model['query_head']['transformer']['encoder']['with_cp']
    assert count == expected
    assert not isinstance(count, bool)


def test_one_dict_per_layer():
    model = port_model()
    for part in ('encoder', 'decoder'):
        cfg = model['query_head']['transformer'][part]
        cfg['transformerlayers'] = [cfg['transformerlayers']] * 6
    assert translate_codetr_config(model) == (
        translate_codetr_config(port_model())
    )


def test_new_keys_mean_the_same():
    """The attention and FFN keys that replaced the deprecated ones."""
    model = port_model()
    transformer = model['query_head']['transformer']
    for part in ('encoder', 'decoder'):
        layer = transformer[part]['transformerlayers']
        layer['ffn_cfgs'] = {
            'type': 'FFN',
            'embed_dims': 256,
            'feedforward_channels': layer.pop('feedforward_channels'),
            'ffn_drop': layer.pop('ffn_dropout'),
            'num_fcs': 2,
            'act_cfg': {'type': 'ReLU', 'inplace': True},
        }
    attention = layer['attn_cfgs'][0]
    del attention['dropout']
    attention.update(
        attn_drop=0.0, proj_drop=0.0, dropout_layer={'type': 'Dropout'}
    )
    attention['dropout_layer']['drop_prob'] = 0.0
    assert translate_codetr_config(model) == (
        translate_codetr_config(port_model())
    )


def test_one_dropout_for_all():
    model = port_model()
    transformer = model['query_head']['transformer']
    for part in ('encoder', 'decoder'):
        layer = transformer[part]['transformerlayers']
        layer['ffn_dropout'] = 0.1
        cfgs = layer['attn_cfgs']
        for attention in cfgs if isinstance(cfgs, list) else [cfgs]:
            attention['dropout'] = 0.1
    result = translate_codetr_config(model)['query_head']['transformer']
    assert result['encoder']['dropout'] == 0.1
    assert result['decoder']['dropout'] == 0.1


def test_im2col_step_changes_nothing():
    model = changed(f'{LAYER}attn_cfgs.im2col_step', 32)
    assert translate_codetr_config(model) == (
        translate_codetr_config(port_model())
    )


def test_a_class_as_type_is_kept():
    neck = {'type': dict, 'a': 1}
    model = translate_codetr_config(changed('neck', neck))
    assert model['neck'] == neck


def test_mask_head_of_the_roi_head():
    """As co_deformable_detr_mask_r50_1x_coco.py of the original has it."""
    model = port_model()
    extractor = copy.deepcopy(model['roi_head'][0]['bbox_roi_extractor'])
    extractor['roi_layer']['output_size'] = 14
    model['roi_head'][0] |= {
        'mask_roi_extractor': extractor,
        'mask_head': {
            'type': 'FCNMaskHead',
            'num_convs': 4,
            'in_channels': 256,
            'conv_out_channels': 256,
            'num_classes': 80,
            'loss_mask': {
                'type': 'CrossEntropyLoss',
                'use_mask': True,
                'loss_weight': 12.0,
            },
        },
    }
    model['train_cfg'][1]['rcnn']['mask_size'] = 28
    model['test_cfg'][1]['rcnn']['mask_thr_binary'] = 0.5
    translated = translate_codetr_config(model)
    ours = Config.fromfile(
        mmext.config_path('_base_/models/co_dino_5scale_r50_instance.py')
    ).to_dict()['model']
    (head,) = translated['roi_head']
    for key in ('mask_roi_extractor', 'mask_head'):
        assert head[key] == ours['roi_head'][key]
    assert translated['train_cfg']['roi_head'][0]['mask_size'] == 28
    model['roi_head'][0]['mask_head']['num_classes'] = 7
    with pytest.raises(ValueError, match='num_classes must be the same'):
        translate_codetr_config(model)


@pytest.mark.parametrize(
    ('path', 'value', 'message'),
    [
        ('type', 'DINO', r"model\.type must be 'CoDETR'"),
        ('_scope_', 'mmseg', r"model\._scope_ must be 'mmdet'"),
        ('use_lsj', 1, r'model\.use_lsj must be True or False, got 1'),
        ('with_attn_mask', None, r'model\.with_attn_mask must be True or'),
        ('with_pos_coord', 'no', r"with_pos_coord must be .* got 'no'"),
        ('mask_head', {}, r'got mask_head=\{\}; mmext has mask heads of'),
        ('frobnicate', 1, 'model must have only .* got frobnicate=1; mmext'),
        ('pretrained', 'a.pth', "pretrained must be None, got 'a.pth'"),
        ('init_cfg', {'type': 'X'}, r'model\.init_cfg must be None.*load_'),
        ('neck', {'type': 'SFP'}, r"neck\.type must name .* got 'SFP'"),
        ('neck', {'depth': 1}, r"model\.neck must have a key 'type', got"),
        ('data_preprocessor', None, 'data_preprocessor must be given'),
        ('backbone', {'type': 'ViT'}, r"backbone\.type must name .*'ViT'"),
        # One number of classes.
        (f'{QUERY}num_classes', 4, 'num_classes must be the same.*=4'),
        (f'{DN}num_classes', 4, 'num_classes must be the same.*=4'),
        ('roi_head.0.bbox_head.num_classes', 4, 'num_classes must .* same.*4'),
        ('bbox_head.0.num_classes', 4, 'num_classes must be the same.*=4'),
        # Settings by position.
        (
            'train_cfg.2.find_unused_parameters',
            True,
            r'model\.train_cfg\.bbox_head .*top',
        ),
        ('train_cfg', [None] * 3 + [{'a': 1}], r'have 3 entries .* got 4'),
        ('train_cfg.1.rcnn_2', 0, r'train_cfg\[1\] .* got rcnn_2=0'),
        (
            'train_cfg.0.assigner.cls_cost',
            None,
            r"train_cfg\[0\]\.assigner must have a key 'reg_cost'",
        ),
        # The query head.
        (f'{QUERY}type', 'DINOHead', r"query_head\.type must be 'CoDINOHead'"),
        (f'{QUERY}as_two_stage', False, 'as_two_stage must be True, got Fal'),
        (f'{QUERY}with_box_refine', False, 'with_box_refine must be True'),
        (f'{QUERY}mixed_selection', False, 'mixed_selection must be True'),
        (f'{QUERY}use_zero_padding', True, 'use_zero_padding must be False'),
        (f'{QUERY}lambda_1', 2, 'lambda_1 must be 1 or 1.0, got 2; mmext has'),
        (f'{QUERY}num_reg_fcs', 3, 'num_reg_fcs must be 2, got 3'),
        (f'{QUERY}share_pred_layer', True, 'share_pred_layer must be False'),
        (f'{QUERY}num_feature_levels', 4, 'num_feature_levels must be 5, got'),
        (f'{QUERY}embed_dims', 128, 'embed_dims must be 256, got 128'),
        (f'{QUERY}init_cfg', {}, r'query_head\.init_cfg must be None'),
        (f'{QUERY}bbox_coder', {}, r'query_head must have only .* bbox_coder'),
        (f'{QUERY}loss_cls', {'type': 'No'}, r"loss_cls\.type .* got 'No'"),
        (
            f'{QUERY}train_cfg',
            {'a': 1},
            r"query_head\.train_cfg must be None or .*, got \{'a': 1\}; it "
            r'must equal the entry of model\.train_cfg',
        ),
        (
            f'{QUERY}test_cfg',
            {'a': 1},
            r'query_head\.test_cfg must .* the entry of model\.test_cfg',
        ),
        *(
            (f'{QUERY}{key}', _DELETE, f"query_head must have a key '{key}'")
            for key in (
                *('num_classes', 'transformer', 'dn_cfg'),
                *('loss_cls', 'loss_bbox', 'loss_iou'),
            )
        ),
        # Denoising.
        (f'{DN}type', 'DnQueryGenerator', r'dn_cfg\.type must be'),
        (f'{DN}num_matching_queries', 300, 'must be 900, got 300; the head'),
        (f'{DN}hidden_dim', 128, 'hidden_dim must be 256, got 128'),
        (f'{DN}noise_scale', {'label': 0.5}, r"noise_scale must .* key 'box'"),
        (
            f'{DN}noise_scale',
            {'label': 0.5, 'box': 1.0, 'a': 1},
            r'noise_scale must have only .* a=1',
        ),
        (f'{DN}foo', 1, r'dn_cfg must have only .* foo=1'),
        # Co-heads.
        ('rpn_head.train_cfg', {'a': 1}, r'must equal the entry of model\.tr'),
        ('rpn_head.type', 'MyRPN', r"rpn_head\.type must name .* got 'MyRPN'"),
        (
            'roi_head.0.type',
            'StandardRoIHead',
            r"roi_head\[0\]\.type must be 'CoStandardRoIHead'",
        ),
        ('roi_head.0.mask_head', {}, r'mask_head must have a key .type'),
        ('roi_head.0.init_cfg', {}, r'roi_head\[0\]\.init_cfg must be None'),
        ('roi_head.0.test_cfg', {'a': 1}, 'must equal the entry of model.tes'),
        (
            'roi_head.0.bbox_head.type',
            'NoHead',
            r"bbox_head\.type must name .* got 'NoHead'",
        ),
        ('bbox_head.0.type', 'ATSSHead', r"\[0\]\.type must be 'CoATSSHead'"),
        ('bbox_head.0.train_cfg', {'a': 1}, 'must equal the entry of model.t'),
        # The transformer.
        (f'{TRANSFORMER}type', 'A', r"transformer\.type must be 'CoDinoTrans"),
        (f'{TRANSFORMER}num_co_heads', 3, 'must be 2, got 3; it is the numb'),
        (f'{TRANSFORMER}num_co_heads', _DELETE, 'must be 2, got 1; it is the'),
        (
            f'{TRANSFORMER}two_stage_num_proposals',
            300,
            'must be 900, got 300; it repeats',
        ),
        (f'{TRANSFORMER}with_pos_coord', False, 'must be True, got False; it'),
        (f'{TRANSFORMER}mixed_selection', False, 'mixed_selection must be Tr'),
        (
            f'{TRANSFORMER}as_two_stage',
            False,
            'as_two_stage must be True, got',
        ),
        (f'{TRANSFORMER}init_cfg', {}, r'transformer\.init_cfg must be None'),
        (f'{TRANSFORMER}num_feature_levels', 4, 'levels must be the same'),
        (f'{TRANSFORMER}act_cfg', {}, r'transformer must have only .*act_cfg'),
        (f'{ENCODER}type', 'Encoder', r'encoder\.type must be'),
        (f'{ENCODER}with_cp', 7, 'with_cp must be a number of layers up to 6'),
        (f'{ENCODER}with_cp', 'all', "with_cp must be a number .* got 'all'"),
        (f'{ENCODER}post_norm_cfg', {'type': 'BN'}, 'post_norm_cfg must be'),
        (f'{ENCODER}foo', 1, r'transformer\.encoder must have only .* foo=1'),
        (f'{DECODER}type', 'Decoder', r'decoder\.type must be'),
        (f'{DECODER}return_intermediate', False, 'True, got False; every'),
        (f'{DECODER}foo', 1, r'transformer\.decoder must have only .* foo=1'),
        # Its layers.
        (f'{LAYER}type', 'Layer', r'transformerlayers\.type must be'),
        (f'{LAYER}operation_order', ('norm', 'ffn'), 'operation_order must b'),
        (f'{LAYER}batch_first', True, 'batch_first must be False, got True'),
        (f'{LAYER}norm_cfg', {'type': 'BN'}, r'norm_cfg must be .* got .*BN'),
        (f'{LAYER}act_cfg', {'type': 'GELU'}, r'act_cfg must .* got .*GELU'),
        (f'{LAYER}ffn_num_fcs', 3, r'num_fcs must be 2, got 3; mmext has no'),
        (f'{LAYER}ffn_dropout', 0.1, r'dropout .* must be the same every'),
        (f'{LAYER}init_cfg', {}, r'transformerlayers\.init_cfg must be None'),
        (f'{LAYER}attn_cfgs', [], r'attn_cfgs must hold 1 dicts .* got 0'),
        (f'{LAYER}foo', 1, 'transformerlayers must have only .* foo=1'),
        (f'{LAYER}ffn_cfgs', {'add_identity': False}, 'identity must be True'),
        (f'{LAYER}ffn_cfgs', {'foo': 1}, r'ffn_cfgs must have only .* foo=1'),
        (f'{LAYER}ffn_cfgs', {'embed_dims': 8}, 'embed_dims .* must be the s'),
        # Deformable attention drops a tenth in mmcv without the key.
        (f'{LAYER}attn_cfgs.dropout', _DELETE, r'\[0\]\.dropout=0\.1'),
        (f'{ENCODER}transformerlayers', [], 'must hold num_layers=6 dicts'),
        (f'{ENCODER}transformerlayers', [1] * 5, 'must hold num_layers=6 dic'),
        (f'{ENCODER}transformerlayers', [{}] * 5 + [1], 'must be the same'),
        (f'{ATTENTION}0.type', 'Attention', r'attn_cfgs\[0\]\.type must be'),
        (f'{ATTENTION}0.num_heads', 4, 'num_heads .* must be the same every'),
        (f'{ATTENTION}0.dropout', 0.2, 'dropout .* must be the same every'),
        (f'{ATTENTION}0.proj_drop', 0.2, 'must be 0.0 or 0, got 0.2'),
        (f'{ATTENTION}0.batch_first', True, 'must be False, got True'),
        (f'{ATTENTION}0.bias', False, r'\[0\] must have only .* bias=False'),
        (
            f'{ATTENTION}0.dropout_layer',
            {'type': 'DropPath'},
            r"dropout_layer\.type must be 'Dropout', got 'DropPath'",
        ),
        (f'{ATTENTION}1.type', 'Attention', r'attn_cfgs\[1\]\.type must be'),
        (f'{ATTENTION}1.num_levels', 4, 'num_feature_levels must be the same'),
        (f'{ATTENTION}1.embed_dims', 128, 'embed_dims .* must be the same'),
        (f'{ATTENTION}1.value_proj_ratio', 2.0, 'ratio must be 1.0 or 1, got'),
        (f'{ATTENTION}1.norm_cfg', {}, r'\[1\]\.norm_cfg must be None'),
        (f'{ATTENTION}1.foo', 1, r'attn_cfgs\[1\] must have only .* foo=1'),
    ],
)
def test_rejects(path, value, message):
    with pytest.raises(ValueError, match=message):
        translate_codetr_config(changed(path, value))


@pytest.mark.parametrize(
    ('path', 'value', 'message'),
    [
        ('neck', 3, r'model\.neck must be a dict, got 3'),
        ('backbone', 'swin', r'model\.backbone must be a dict'),
        ('train_cfg', {'rpn': {}}, r'model\.train_cfg must be a list'),
        ('train_cfg', [None, 3], r'train_cfg\[1\] must be a dict'),
        ('train_cfg.0', [], r'train_cfg\.query_head must be a dict'),
        ('query_head.transformer', 1, r'transformer must be a dict, got 1'),
        ('roi_head.0.bbox_head', [], r'bbox_head must be a dict, got \[\]'),
        (f'{TRANSFORMER}encoder', 6, 'encoder must be a dict, got 6'),
        (f'{TRANSFORMER}decoder', 6, 'decoder must be a dict, got 6'),
        (f'{LAYER}ffn_cfgs', [1], r'ffn_cfgs must be a dict, got \[1\]'),
    ],
)
def test_rejects_what_must_be_a_dict(path, value, message):
    with pytest.raises(TypeError, match=message):
        translate_codetr_config(changed(path, value))


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'match_costs': []}, r'assigner must have only .* match_costs=\[\]'),
        ({'iou_cost': _DELETE}, r"assigner must have a key 'iou_cost'"),
    ],
)
def test_rejects_mixed_costs(change, message):
    ((key, value),) = change.items()
    model = changed('train_cfg.0', original_model()['train_cfg'][0])
    model = changed(f'train_cfg.0.assigner.{key}', value, model)
    with pytest.raises(ValueError, match=message):
        translate_codetr_config(model)


def test_missing_number_of_classes_is_that_of_mmdet():
    model = port_model(num_classes=3)
    model = changed('roi_head.0.bbox_head.num_classes', model=model)
    with pytest.raises(ValueError, match=r'bbox_head\.num_classes=80'):
        translate_codetr_config(model)


def test_rejects_dropouts_that_one_number_cannot_say():
    model = changed(f'{ATTENTION}0.dropout')
    model = changed(f'{ATTENTION}0.attn_drop', 0.1, model)
    model = changed(f'{ATTENTION}0.dropout_layer', None, model)
    with pytest.raises(ValueError, match=r'attn_drop=0\.1, .*drop_prob=0\.0'):
        translate_codetr_config(model)


def test_prefixes_a_backbone_of_mmdet():
    resnet = {'type': 'ResNet', 'depth': 18, 'norm_cfg': {'type': 'BN'}}
    model = translate_codetr_config(changed('backbone', resnet))
    assert model['backbone'] == {**resnet, 'type': 'mmdet.ResNet'}
    assert resnet['type'] == 'ResNet'


def test_matches_original_swin():
    """Config and weights of the original give the original's maps."""
    depths, heads = SMALL_SWIN['depths'], SMALL_SWIN['num_heads']
    cfg = translate_backbone()
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


def test_swin_defaults_that_differ_are_written():
    model = changed('backbone', {'type': 'SwinTransformerV1'})
    cfg = translate_codetr_config(model)['backbone']
    assert cfg['drop_path_rate'] == 0.2
    assert isinstance(MMDET_MODELS.build(cfg), SwinTransformer)
    assert 'init_cfg' not in cfg


def test_pretrained_is_a_file_to_convert():
    cfg = translate_backbone(pretrained='swin.pth')
    assert cfg['init_cfg'] == {'type': 'Pretrained', 'checkpoint': 'swin.pth'}
    assert cfg['convert_weights'] is True


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
def test_rejects_swin(change, message):
    with pytest.raises(ValueError, match=message):
        translate_backbone(**change)
