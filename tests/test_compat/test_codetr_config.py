"""Translated public configs: against recorded models and our own configs."""

import copy
from pathlib import Path

import pytest
import torch
from mmdet.registry import MODELS as MMDET_MODELS
from mmengine import Config, ConfigDict
from reduce_config import state_spec
from reference.codetr_port_config import original_model, port_model

from mmext.compat import translate_codetr_config
from mmext.compat._section import same, to_plain

ORACLES = Path(__file__).parents[1] / 'oracles'
CONFIGS = Path(__file__).parents[2] / 'configs'
PREPROCESSOR = {'type': 'DetDataPreprocessor', 'mean': [1.0], 'std': [2.0]}


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
    assert state_spec(to_plain(model)) == listed(name)


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
    ours = to_plain(
        Config.fromfile(CONFIGS / f'_base_/models/{file}.py').model
    )
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


def test_without_settings_for_training():
    model = port_model()
    model['train_cfg'] = None
    result = translate_codetr_config(model)
    assert result['train_cfg'] == {'roi_head': [None], 'bbox_head': [None]}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'type': 'DINO'}, r"model\.type must be 'CoDETR'"),
        ({'_scope_': 'mmseg'}, r"model\._scope_ must be 'mmdet'"),
        ({'use_lsj': 1}, r'model\.use_lsj must be True or False, got 1'),
        ({'with_attn_mask': None}, r'model\.with_attn_mask must be True or'),
        ({'with_pos_coord': 'no'}, r"with_pos_coord must be .* got 'no'"),
        ({'mask_head': {}}, r'got mask_head=\{\}; mmext has no instance seg'),
        ({'frobnicate': 1}, 'model must have only .* got frobnicate=1'),
        ({'pretrained': 'a.pth'}, "pretrained must be None, got 'a.pth'"),
        ({'init_cfg': {'type': 'X'}}, r'model\.init_cfg must be None; .*load'),
        ({'neck': {'type': 'SFP'}}, r"neck\.type must name .* got 'SFP'"),
        ({'data_preprocessor': None}, 'data_preprocessor must be given'),
        ({'backbone': {'type': 'ViT'}}, r"backbone\.type must name .*'ViT'"),
    ],
)
def test_rejects(change, message):
    with pytest.raises(ValueError, match=message):
        translate_codetr_config({**port_model(), **change})


def test_pretrained_none_is_no_weights():
    model = port_model()
    model['pretrained'] = [None, None]
    assert 'pretrained' not in translate_codetr_config(model)


@pytest.mark.parametrize('model', [None, [1], 'config.py'])
def test_rejects_what_is_no_dict(model):
    with pytest.raises(TypeError, match='model must be a dict, got'):
        translate_codetr_config(model)


@pytest.mark.parametrize(
    'place',
    [
        ('query_head', 'num_classes'),
        ('query_head', 'dn_cfg', 'num_classes'),
        ('roi_head', 0, 'bbox_head', 'num_classes'),
        ('bbox_head', 0, 'num_classes'),
    ],
)
def test_rejects_another_number_of_classes(place):
    model = port_model(num_classes=3)
    inner = model
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = 4
    with pytest.raises(ValueError, match=r'num_classes must be the same.*=4'):
        translate_codetr_config(model)


def test_missing_number_of_classes_is_that_of_mmdet():
    model = port_model(num_classes=3)
    del model['roi_head'][0]['bbox_head']['num_classes']
    with pytest.raises(ValueError, match=r'bbox_head\.num_classes=80'):
        translate_codetr_config(model)


def test_rejects_a_setting_that_no_head_reads():
    model = port_model()
    model['train_cfg'][2]['find_unused_parameters'] = True
    with pytest.raises(ValueError, match=r'model\.train_cfg\.bbox_head .*top'):
        translate_codetr_config(model)
